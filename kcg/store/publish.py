"""Stores to and from the Hugging Face Hub, as datasets: one commit up, one pinned commit down, every entry checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from kcg.errors import DataError
from kcg.hub import LIMITS, MAIN, Cargo, Limits, cached_folder, pull_folder, push_folder
from kcg.store.entry import MAX_BYTES
from kcg.store.folder import MARKER, Store, check_marker, open_folder


def push(
    folder: Path,
    repo: str,
    *,
    branch: str = MAIN,
    message: str = "",
    private: bool = False,
    token: str | None = None,
    endpoint: str | None = None,
    limits: Limits = LIMITS,
) -> str:
    """Uploads a store to the dataset `repo` in one commit; returns its 40-hex id. Entries of the repository that the
    folder lacks stay: of several of a key the fastest counts. Errors as `kcg.hub.push_folder` says."""
    store = open_folder(str(folder))
    return push_folder(
        store.folder,
        repo,
        cargo=STORES,
        message=message or "kcg: push a store of schedules",
        branch=branch,
        private=private,
        token=token,
        endpoint=endpoint,
        limits=limits,
    )


def pull(
    repo: str,
    folder: Path,
    *,
    revision: str,
    token: str | None = None,
    endpoint: str | None = None,
    limits: Limits = LIMITS,
) -> int:
    """Downloads one commit of a store to a new or empty `folder`; returns how many entries it has. Errors as
    `kcg.hub.pull_folder` says."""
    files = pull_folder(repo, folder, cargo=STORES, revision=revision, token=token, endpoint=endpoint, limits=limits)
    return len(files) - 1  # all but the marker


def cached(repo: str, revision: str) -> Path:
    """The folder of one commit in the cache of the Hub's client, downloaded where it is not there yet."""
    return cached_folder(repo, cargo=STORES, revision=revision)


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
)
