"""Stores to and from the Hugging Face Hub, as datasets: one commit up, one pinned commit down, every entry checked.

Entries of a repository that a pushed folder lacks stay: of several of a key the fastest counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePosixPath

from kcg.errors import DataError
from kcg.hub import Cargo, cached_folder, pull_folder, push_folder
from kcg.store.entry import MAX_BYTES
from kcg.store.folder import MARKER, Store, check_marker


def _digests(root: Path, names: Sequence[str]) -> dict[str, str]:
    """The SHA-256 of each file, once every entry can be read; DataError otherwise."""
    import hashlib

    check_marker(root)
    store, found = Store(str(root), root, writable=False), {}
    for name in names:
        path = root / name
        if name != MARKER:
            if len(PurePosixPath(name).parts) != 2:
                raise DataError(f"{path} is no entry of a store: remove it")
            seen = store.read(path)
            if seen is None or seen.problem:
                raise DataError(f"{path}: {seen.problem if seen is not None else 'it is gone'}")
        found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


STORES = Cargo(
    kind="dataset",
    suffixes=(".json",),
    marker=MARKER,
    holds="store",
    made_by="make one with kcg store add, or kcg optimize --store",
    digests=_digests,
    most_bytes=MAX_BYTES,
    message="kcg: push a store of schedules",
)

push = partial(push_folder, cargo=STORES)
pull = partial(pull_folder, cargo=STORES)
cached = partial(cached_folder, cargo=STORES)
