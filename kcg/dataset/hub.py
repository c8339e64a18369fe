"""Exports to and from datasets of the Hugging Face Hub: one commit up, one pinned commit down, whole or not at all.

Only Parquet, JSON and Markdown travel, from a folder and its subfolders one level deep; nothing that is pulled is ever
executed or unpickled. What is pushed was checked against its `checksums.json` before, what is pulled after it arrived.

No call waits for ever: see `kcg.dataset.hub_client`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

from kcg.dataset.export import CHECKSUMS, read_export
from kcg.dataset.hub_client import FOREIGN, LIMITS, Limits, Transfer, explained, session, token_of, transfer_of
from kcg.errors import DataError, KcgError, UsageError

SUFFIXES = (".parquet", ".json", ".md")
"""What travels. Everything else in a folder or a repository stays where it is."""

NAME = re.compile(r"(?:\w[\w.+=-]*/)?\w[\w.+=-]*\.(?:parquet|json|md)", re.ASCII)  # one level deep, never hidden or ..
COMMIT = re.compile(r"[0-9a-f]{40}")


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

    The dataset is created where it is missing. Files of the repository that the folder does not have stay. Where
    nothing differs no commit is made, and the id is that of the latest. The token is the one of the environment
    (HF_TOKEN, `hf auth login`) unless given; `endpoint` is HF_ENDPOINT or huggingface.co.
    Raises DataError where an export does not agree with its checksums or the Hub cannot be reached, UsageError where
    the folder, the name, the token or the rights are wrong. Where that is known only once the commit is there, another
    push of the same folder completes it, or returns its id.
    """
    transfer = transfer_of(repo, endpoint, None, limits)
    try:
        names = _local_names(folder)
        if not any(PurePosixPath(name).name == CHECKSUMS for name in names):
            raise UsageError(f"{folder} holds no export (no {CHECKSUMS}): write one with python -m kcg.dataset export")
        digests = _digests(folder, names)
        with session(transfer):
            token = token_of(token)
            if token is None:
                raise UsageError(f"no token to push to {repo}: set HF_TOKEN to one with write access")
            api = HfApi(endpoint=transfer.endpoint, token=token)
            head = _head(api, repo, private=private)
            additions = [CommitOperationAdd(name, folder / name) for name in names]
            for addition in additions:
                # one at a time, in this thread: in the client's own pool an upload could not be interrupted
                api.preupload_lfs_files(repo, [addition], repo_type="dataset", free_memory=False)
            if _digests(folder, names) != digests:
                raise DataError(f"{folder} changed while it was pushed: push it again")
            # the commit is refused where another has come since: its files would mix with those that did not change
            done = api.create_commit(
                repo,
                additions,
                commit_message=message or "kcg: push a dataset",
                repo_type="dataset",
                parent_commit=head,
            )
            commit = str(done.oid)
            siblings = api.dataset_info(repo, revision=commit).siblings or []
            missing = sorted(set(names) - {file.rfilename for file in siblings})
    except KcgError:
        raise
    except FOREIGN as error:
        raise explained(error, transfer) from error
    if missing:
        raise DataError(f"commit {commit} of {repo} has no {missing[0]}: is it in a .gitignore of the repository?")
    if not COMMIT.fullmatch(commit):
        raise DataError(f"{transfer.host} answered with no commit id: is that a Hugging Face Hub?")
    return commit


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

    `revision` is the 40-hex id that `push` returned: a name such as main can mean other data tomorrow. The files arrive
    in a hidden folder beside `folder`, which takes its name when every export in it agrees with its checksums. `token`
    and `endpoint` are those of `push`; a public dataset needs no token.
    Raises DataError where the data cannot be trusted or the Hub cannot be reached, UsageError where the name, the
    revision, the folder or the rights are wrong. `folder` is then as it was before.
    """
    transfer = transfer_of(repo, endpoint, revision, limits)
    if not COMMIT.fullmatch(revision):
        raise UsageError(
            f"revision {revision!r} is no pinned commit: give the 40 hex digits that push printed, or one from "
            f"{transfer.page}/commits/main"
        )
    folder = Path(os.path.abspath(folder))  # noqa: PTH100 - the last part must not be followed if it is a link
    try:
        _refuse_occupied(folder)
        beside = next(parent for parent in folder.parents if parent.exists())
        with (
            tempfile.TemporaryDirectory(
                dir=beside, prefix=f".{folder.name}.", suffix=".part", ignore_cleanup_errors=True
            ) as part,
            session(transfer),
        ):
            data = Path(part) / "data"
            data.mkdir()
            api = HfApi(endpoint=transfer.endpoint, token=token_of(token))
            names = _remote_names(api, transfer, beside)
            for name in names:
                api.hf_hub_download(
                    repo, name, repo_type="dataset", revision=revision, local_dir=data, cache_dir=Path(part) / "cache"
                )
                if (data / name).is_symlink() or not (data / name).is_file():
                    raise DataError(f"{repo} holds {name}, which is no plain file: it is not pulled")
            shutil.rmtree(data / ".cache", ignore_errors=True)  # the client's notes on what it downloaded
            try:
                digests = _digests(data, names)
            except DataError as error:
                said = str(error).replace(f"{data}{os.sep}", "").replace(str(data), repo)
                raise DataError(f"{repo} at {revision[:12]}: {said}") from error
            folder.parent.mkdir(parents=True, exist_ok=True)
            _refuse_occupied(folder)
            data.rename(folder)
    except KcgError:
        raise
    except FOREIGN as error:
        raise explained(error, transfer) from error
    return digests


def _local_names(folder: Path) -> list[str]:
    """The files that travel, relative to the folder. Links are refused: they may lead to what was not to be shared."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder: give the folder of an export")
    names = []
    for entry in sorted([*folder.iterdir(), *folder.glob("*/*")]):
        relative = entry.relative_to(folder)
        if any(part.startswith(".") for part in relative.parts) or (entry.is_dir() and len(relative.parts) == 2):
            continue
        if entry.is_symlink() and (entry.suffix in SUFFIXES or entry.is_dir()):
            raise UsageError(f"{entry} is a link: only plain files and folders are pushed")
        if entry.suffix in SUFFIXES and entry.is_file():
            if not NAME.fullmatch(relative.as_posix()):
                raise UsageError(f"{entry} has a name that is not pushed: use letters, digits and _ . - only")
            names.append(relative.as_posix())
    return names


def _remote_names(api: HfApi, transfer: Transfer, beside: Path) -> list[str]:
    """The files of a pinned commit that travel, once there is an export among them and space for all."""
    info = api.dataset_info(transfer.repo, revision=transfer.revision, files_metadata=True)
    if info.sha != transfer.revision:
        raise DataError(f"{transfer.host} answered with another commit of {transfer.repo} than the pinned one")
    files = [file for file in info.siblings or [] if NAME.fullmatch(file.rfilename)]
    names = sorted(file.rfilename for file in files)
    if not any(PurePosixPath(name).name == CHECKSUMS for name in names):
        raise DataError(f"{transfer.repo} holds no export of kcg (no {CHECKSUMS}): is it another dataset?")
    needed, free = sum(file.size or 0 for file in files), shutil.disk_usage(beside).free
    if needed > free:
        raise DataError(f"disk full: {transfer.repo} needs {needed} bytes, {beside} has {free}: free some space")
    return names


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


def _refuse_occupied(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder} is no folder: name a new or empty one")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty: name a new or empty folder")


def _head(api: HfApi, repo: str, *, private: bool) -> str | None:
    """The latest commit of the dataset, which is created where it is missing."""
    try:
        info = api.dataset_info(repo)
    except GatedRepoError:
        raise
    except RepositoryNotFoundError:
        api.create_repo(repo, repo_type="dataset", private=private, exist_ok=True)
        info = api.dataset_info(repo)
    if private and info.private is False:
        raise UsageError(f"{repo} is public: push to another dataset, or make it private in its settings first")
    return info.sha
