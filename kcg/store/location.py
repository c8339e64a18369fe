"""A store by what a user names it: a folder, or a pinned commit of the Hub."""

from __future__ import annotations

import re
from typing import Final

from kcg.errors import UsageError
from kcg.store.folder import Store, open_folder

HUB: Final = "hf://"
_PINNED = re.compile(r"hf://(?P<repo>[^@\s]+)@(?P<revision>[0-9a-f]{40})")


def open_store(location: str, *, new: bool = False) -> Store:
    """The store of a folder, see `open_folder`, or of `hf://owner/name@<40 hex digits>`, which is downloaded once and
    only read.

    Raises:
        UsageError: it is no store, or its name is none.
        DataError: it is of another schema, or cannot be read or downloaded.
    """
    if not location.startswith(HUB):
        return open_folder(location, new=new)
    repo, revision = _pinned(location)
    from kcg.store.publish import STORES

    return Store(location, STORES.cached(repo, revision=revision), writable=False)


def check_store(location: str) -> None:
    """Raises as `open_store` of one that may be new, where nothing is to be downloaded."""
    if location.startswith(HUB):
        _pinned(location)
    else:
        open_folder(location, new=True)


def _pinned(location: str) -> tuple[str, str]:
    match = _PINNED.fullmatch(location)
    if match is None:
        raise UsageError(f"{location} is no pinned store: give hf://OWNER/NAME@ and the 40 hex digits of a commit")
    return match["repo"], match["revision"]
