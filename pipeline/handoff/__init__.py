"""What a training image loads: the manifest and its phases. Needs numpy, pyarrow and the standard library.

`xxhash` is needed as well where an id is computed or verified.
"""
