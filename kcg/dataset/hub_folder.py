"""Folders to and from repositories of the Hugging Face Hub: one commit up, one pinned commit down, whole or not at all.

What travels is a kind of cargo: datasets' exports (`kcg.dataset.hub`), predictors (`kcg.predictor.hub`). Only files of
its suffixes travel, from a folder and its subfolders one level deep; nothing that is pulled is ever executed or
unpickled. What is pushed was checked before, what is pulled after it arrived.

No call waits for ever: see `kcg.dataset.hub_client`.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from huggingface_hub import CommitOperationAdd, DatasetInfo, HfApi, ModelInfo
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

from kcg.dataset.hub_client import FOREIGN, LIMITS, Limits, Transfer, explained, session, token_of, transfer_of
from kcg.errors import DataError, KcgError, UsageError

COMMIT = re.compile(r"[0-9a-f]{40}")
BRANCH = re.compile(r"\w[\w.-]{0,99}", re.ASCII)
MAIN = "main"


@dataclass(frozen=True)
class Cargo:
    """What travels, and how it is told from anything else."""

    kind: str  # of repository, as the Hub calls it: dataset or model
    suffixes: tuple[str, ...]  # everything else in a folder or a repository stays where it is
    marker: str  # a file that is always there
    holds: str  # what the marker stands for, with its article
    made_by: str  # how to get one
    digests: Callable[[Path, Sequence[str]], dict[str, str]]
    """The SHA-256 of each file under a folder, once all that the cargo promises holds; DataError otherwise."""
    most_bytes: int | None = None  # of one file; a larger one is not downloaded

    def travels(self, name: str) -> bool:
        """Whether a path in a repository is one of ours: one level deep at most, never hidden or with `..`."""
        endings = "|".join(re.escape(suffix) for suffix in self.suffixes)
        return re.fullmatch(rf"(?:\w[\w.+=-]*/)?\w[\w.+=-]*(?:{endings})", name, re.ASCII) is not None


def push_folder(
    folder: Path,
    repo: str,
    *,
    cargo: Cargo,
    message: str,
    branch: str = MAIN,
    private: bool = False,
    token: str | None = None,
    endpoint: str | None = None,
    limits: Limits = LIMITS,
) -> str:
    """Uploads a folder's cargo to `repo` in one commit; returns its 40-hex id.

    The repository is created where it is missing, a branch other than main as well. Files of the repository that the
    folder does not have stay. Where nothing differs no commit is made, and the id is that of the latest. The token is
    the one of the environment (HF_TOKEN, `hf auth login`) unless given; `endpoint` is HF_ENDPOINT or huggingface.co.
    Raises DataError where the cargo cannot be trusted or the Hub cannot be reached, UsageError where the folder, the
    name, the token or the rights are wrong. Where that is known only once the commit is there, another push of the
    same folder completes it, or returns its id.
    """
    transfer = transfer_of(repo, endpoint, None, limits, kind=cargo.kind)
    if not BRANCH.fullmatch(branch) or COMMIT.fullmatch(branch):
        raise UsageError(f"{branch!r} is no branch to push to: give a name such as {MAIN} or v2")
    try:
        names = _local_names(folder, cargo)
        if not any(PurePosixPath(name).name == cargo.marker for name in names):
            raise UsageError(f"{folder} holds no {cargo.holds} (no {cargo.marker}): {cargo.made_by}")
        digests = cargo.digests(folder, names)
        with session(transfer):
            token = token_of(token)
            if token is None:
                raise UsageError(f"no token to push to {repo}: set HF_TOKEN to one with write access")
            api = HfApi(endpoint=transfer.endpoint, token=token)
            head = _head(api, repo, cargo.kind, branch, private=private)
            additions = [CommitOperationAdd(name, folder / name) for name in names]
            for addition in additions:
                # one at a time, in this thread: in the client's own pool an upload could not be interrupted
                api.preupload_lfs_files(repo, [addition], repo_type=cargo.kind, revision=branch, free_memory=False)
            if cargo.digests(folder, names) != digests:
                raise DataError(f"{folder} changed while it was pushed: push it again")
            # the commit is refused where another has come since: its files would mix with those that did not change
            done = api.create_commit(
                repo, additions, commit_message=message, repo_type=cargo.kind, revision=branch, parent_commit=head
            )
            commit = str(done.oid)
            siblings = _info(api, repo, cargo.kind, commit).siblings or []
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


def pull_folder(
    repo: str,
    folder: Path,
    *,
    cargo: Cargo,
    revision: str,
    token: str | None = None,
    endpoint: str | None = None,
    limits: Limits = LIMITS,
) -> dict[str, str]:
    """Downloads one commit of `repo` to a new or empty `folder`; returns the SHA-256 of each file by name.

    `revision` is the 40-hex id that `push_folder` returned: a name such as main can mean other data tomorrow. The files
    arrive in a hidden folder beside `folder`, which takes its name when all that the cargo promises holds. `token` and
    `endpoint` are those of `push_folder`; a public repository needs no token.
    Raises DataError where the data cannot be trusted or the Hub cannot be reached, UsageError where the name, the
    revision, the folder or the rights are wrong. `folder` is then as it was before.
    """
    transfer = transfer_of(repo, endpoint, revision, limits, kind=cargo.kind)
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
            names = _remote_names(api, transfer, cargo, beside)
            for name in names:
                api.hf_hub_download(
                    repo, name, repo_type=cargo.kind, revision=revision, local_dir=data, cache_dir=Path(part) / "cache"
                )
                if (data / name).is_symlink() or not (data / name).is_file():
                    raise DataError(f"{repo} holds {name}, which is no plain file: it is not pulled")
            shutil.rmtree(data / ".cache", ignore_errors=True)  # the client's notes on what it downloaded
            try:
                digests = cargo.digests(data, names)
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


def _local_names(folder: Path, cargo: Cargo) -> list[str]:
    """The files that travel, relative to the folder. Links are refused: they may lead to what was not to be shared."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder: give the folder of one {cargo.holds}")
    names = []
    for entry in sorted([*folder.iterdir(), *folder.glob("*/*")]):
        relative = entry.relative_to(folder)
        if any(part.startswith(".") for part in relative.parts) or (entry.is_dir() and len(relative.parts) == 2):
            continue
        if entry.is_symlink() and (entry.suffix in cargo.suffixes or entry.is_dir()):
            raise UsageError(f"{entry} is a link: only plain files and folders are pushed")
        if entry.suffix in cargo.suffixes and entry.is_file():
            if not cargo.travels(relative.as_posix()):
                raise UsageError(f"{entry} has a name that is not pushed: use letters, digits and _ . - only")
            names.append(relative.as_posix())
    return names


def _remote_names(api: HfApi, transfer: Transfer, cargo: Cargo, beside: Path) -> list[str]:
    """The files of a pinned commit that travel, once they are cargo and there is space for all."""
    repo = transfer.repo
    info = _info(api, repo, cargo.kind, transfer.revision)
    if info.sha != transfer.revision:
        raise DataError(f"{transfer.host} answered with another commit of {repo} than the pinned one")
    files = [file for file in info.siblings or [] if cargo.travels(file.rfilename)]
    names = sorted(file.rfilename for file in files)
    if not any(PurePosixPath(name).name == cargo.marker for name in names):
        raise DataError(f"{repo} holds no {cargo.holds} of kcg (no {cargo.marker}): is it another {cargo.kind}?")
    for file in files:
        if cargo.most_bytes is not None and (file.size or 0) > cargo.most_bytes:
            raise DataError(
                f"{repo} holds {file.rfilename} of {file.size} bytes, more than the {cargo.most_bytes} of any "
                f"{cargo.holds}: is it another {cargo.kind}?"
            )
    needed, free = sum(file.size or 0 for file in files), shutil.disk_usage(beside).free
    if needed > free:
        raise DataError(f"disk full: {repo} needs {needed} bytes, {beside} has {free}: free some space")
    return names


def _info(api: HfApi, repo: str, kind: str, revision: str | None = None) -> DatasetInfo | ModelInfo:
    """What the Hub says of a commit, its files and their sizes among it; of the latest of main by default."""
    ask = api.model_info if kind == "model" else api.dataset_info
    return ask(repo, revision=revision, files_metadata=True)


def _refuse_occupied(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder} is no folder: name a new or empty one")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty: name a new or empty folder")


def _head(api: HfApi, repo: str, kind: str, branch: str, *, private: bool) -> str | None:
    """The latest commit of the branch. Repository and branch are created where they are missing."""
    try:
        info = _info(api, repo, kind)
    except GatedRepoError:
        raise
    except RepositoryNotFoundError:
        api.create_repo(repo, repo_type=kind, private=private, exist_ok=True)
        info = _info(api, repo, kind)
    if private and info.private is False:
        raise UsageError(f"{repo} is public: push to another {kind}, or make it private in its settings first")
    if branch != MAIN:
        api.create_branch(repo, branch=branch, repo_type=kind, exist_ok=True)
        info = _info(api, repo, kind, branch)
    return info.sha
