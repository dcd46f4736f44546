"""The engine: plans, runs, publishes and reports. It knows nothing about duplicates or quality."""
