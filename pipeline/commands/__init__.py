"""What stands behind each command but `run`: functions that take and return plain records. Only `cli` prints."""
