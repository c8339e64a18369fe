"""Stores on the Hugging Face Hub, as datasets, every entry checked.

Entries of a repository that a pushed folder lacks stay: of several of a key the fastest counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from kcg.errors import DataError
from kcg.hub.publisher import Publisher
from kcg.store.entry import MAX_BYTES
from kcg.store.folder import MARKER, Store, check_marker


def _check(root: Path, names: Sequence[str]) -> Mapping[str, str]:
    check_marker(root)
    store = Store(str(root), root, writable=False)
    for name in (name for name in names if name != MARKER):
        if len(PurePosixPath(name).parts) != 2:
            raise DataError(f"{root / name} is no entry of a store: remove it")
        seen = store.read(root / name)
        if seen is None or seen.problem:
            raise DataError(f"{root / name}: {seen.problem if seen is not None else 'it is gone'}")
    return {}


STORES = Publisher(
    repository="dataset",
    suffixes=(".json",),
    marker=MARKER,
    holds="store",
    made_by="make one with kcg store add, or kcg optimize --store",
    check=_check,
    most_bytes=MAX_BYTES,
    message="kcg: push a store of schedules",
)
