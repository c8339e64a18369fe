"""Exports to and from datasets of the Hugging Face Hub: one commit up, one pinned commit down, whole or not at all.

Only Parquet, JSON and Markdown travel; see `kcg.hub`. Every export among what is pushed or pulled agrees
with its `checksums.json`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from kcg.dataset.export import CHECKSUMS, read_export
from kcg.hub import LIMITS, Cargo, Limits, pull_folder, push_folder


def push(
    folder: Path,
    repo: str,
    *,
    message: str = "",
    private: bool = False,
    token: str | None = None,
    endpoint: str | None = None,
    limits: Limits = LIMITS,
) -> str:
    """Uploads an export, or a folder of exports, to the dataset `repo` in one commit; returns its 40-hex id.

    Everything else, errors included, as `kcg.hub.push_folder` says.
    """
    return push_folder(
        folder, repo, cargo=EXPORTS, message=message or "kcg: push a dataset", private=private, token=token,
        endpoint=endpoint, limits=limits,
    )  # fmt: skip


def pull(
    repo: str,
    folder: Path,
    *,
    revision: str,
    token: str | None = None,
    endpoint: str | None = None,
    limits: Limits = LIMITS,
) -> dict[str, str]:
    """Downloads one commit of the dataset `repo` to a new or empty `folder`; returns the SHA-256 of each file by name.

    Everything else, errors included, as `kcg.hub.pull_folder` says.
    """
    return pull_folder(repo, folder, cargo=EXPORTS, revision=revision, token=token, endpoint=endpoint, limits=limits)


def _digests(root: Path, names: Sequence[str]) -> dict[str, str]:
    """The SHA-256 of each file, once every export among them agrees with its checksums; DataError otherwise."""
    found: dict[str, str] = {}
    for name in names:
        if (path := PurePosixPath(name)).name == CHECKSUMS:
            checksums = read_export(root / path.parent).checksums
            found |= {str(path.parent / file): digest for file, digest in checksums.items()}
    for name in names:
        if name not in found:
            with (root / name).open("rb") as file:
                found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return {name: found[name] for name in names}


EXPORTS = Cargo(
    kind="dataset", suffixes=(".parquet", ".json", ".md"), marker=CHECKSUMS, holds="export",
    made_by="write one with python -m kcg.dataset export", digests=_digests,
)  # fmt: skip
