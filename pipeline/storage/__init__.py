"""Stores: one root behind one URL, on local disk, in memory, on S3 or on any other fsspec file system.

What the rest of corpusmill may rely on, whatever the store: a file appears whole or not at all; an exclusive create has
one winner; a listing is never older than the call; names are literal; transient errors are waited out, expired
credentials renewed once, and what still fails is a StorageError that names the URL and no secret.

A `Store` is a value: it travels to workers, and each process connects by itself at first use. Options go to fsspec as
they are; an option `env:NAME` is read from the environment of the process that connects, so that no secret need stand
in a config, a log or a pickle.

    store.py     Store, and files known by their URL      local.py    files of this machine's own file systems
    listing.py   what an input path names                 remote.py   everything else; the only importer of fsspec
    faults.py    what a failed request means              root.py     what those two have in common
"""

from __future__ import annotations

from pipeline.storage.faults import MissingFileError
from pipeline.storage.listing import InputFile, Listing, expand
from pipeline.storage.local import is_temporary
from pipeline.storage.remote import counts
from pipeline.storage.root import Entry
from pipeline.storage.store import Store, entry_of, fetch, locate, open_url

__all__ = [
    "Entry",
    "InputFile",
    "Listing",
    "MissingFileError",
    "Store",
    "counts",
    "entry_of",
    "expand",
    "fetch",
    "is_temporary",
    "locate",
    "open_url",
]
