"""What is shared on the Hugging Face Hub: one commit up, one pinned commit down, whole or not at all.

How something is pushed and pulled is said here once; datasets, stores and checkpoints are descriptions of it (`EXPORTS`
of `kcg.dataset.publish`, `STORES` of `kcg.store.publish`, `CHECKPOINTS` of `kcg.rl.publish`). Only files of a
description's suffixes travel, from a folder and its subfolders one level deep; nothing that is pulled is ever executed
or unpickled. What is pushed was checked before, what is pulled after it arrived. Errors are one line each.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Unpack

from huggingface_hub import CommitOperationAdd, DatasetInfo, HfApi, ModelInfo, constants, try_to_load_from_cache
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

from kcg.errors import DataError, UsageError
from kcg.files import sha256_of
from kcg.hub.client import COMMIT, Access, Transfer, in_one_line, session, transfer_of

BRANCH = re.compile(r"\w[\w.-]{0,99}", re.ASCII)
MAIN = "main"


@dataclass(frozen=True)
class Publisher:
    """Pushes and pulls what it describes: what travels, and how it is told from anything else."""

    repository: str  # as the Hub calls it: dataset or model
    suffixes: tuple[str, ...]  # everything else in a folder or a repository stays where it is
    marker: str  # a file that is always there
    holds: str  # what the marker stands for
    made_by: str  # how to get one
    check: Callable[[Path, Sequence[str]], Mapping[str, str]]
    """Raises DataError unless all that is promised holds of the files under a folder. Gives those SHA-256 that it had
    to compute."""
    most_bytes: int | None = None  # of one file; a larger one is not downloaded
    message: str = ""  # of a commit, where none is given
    stage: Callable[[Path, str, Path], str] | None = None
    """Puts what travels of a file, to a repository, into an empty folder, and gives the commit's message; None where a
    folder is pushed as it is."""

    def push(
        self,
        source: Path,
        repo: str,
        *,
        branch: str = MAIN,
        message: str = "",
        private: bool = False,
        **access: Unpack[Access],
    ) -> str:
        """Uploads to `repo` in one commit, with a message of its own unless one is given; returns its 40-hex id.

        The repository is created where it is missing, a branch other than main as well. Files of the repository that
        the source does not have stay. Where nothing differs no commit is made, and the id is that of the latest.
        Raises DataError where the source cannot be trusted or the Hub cannot be reached, UsageError where the source,
        the name, the token or the rights are wrong. Where that is known only once the commit is there, another push of
        the same source completes it, or returns its id.
        """
        transfer = transfer_of(repo, self.repository, **access)
        if not BRANCH.fullmatch(branch) or COMMIT.fullmatch(branch):
            raise UsageError(f"{branch!r} is no branch to push to: give a name such as {MAIN} or v2")
        with tempfile.TemporaryDirectory(prefix="kcg-push-", ignore_cleanup_errors=True) as empty:
            folder, usual = source, self.message
            if self.stage is not None:
                folder, usual = Path(empty), self.stage(source, repo, Path(empty))
            with in_one_line(transfer), session(transfer) as api:
                names = self._local_names(folder)
                if not any(PurePosixPath(name).name == self.marker for name in names):
                    raise UsageError(f"{folder} holds no {self.holds} (no {self.marker}): {self.made_by}")
                digests = self._digests(folder, names)
                if api.token is None:
                    raise UsageError(f"no token to push to {repo}: set HF_TOKEN to one with write access")
                head = _head(api, transfer, branch, private=private)
                additions = [CommitOperationAdd(name, folder / name) for name in names]
                for addition in additions:
                    # one at a time, in this thread: in the client's own pool an upload could not be interrupted
                    api.preupload_lfs_files(
                        repo, [addition], repo_type=transfer.kind, revision=branch, free_memory=False
                    )
                if self._digests(folder, names) != digests:
                    raise DataError(f"{folder} changed while it was pushed: push it again")
                # the commit is refused where another has come since: its files would mix with those that did not change
                done = api.create_commit(
                    repo,
                    additions,
                    commit_message=message or usual,
                    repo_type=transfer.kind,
                    revision=branch,
                    parent_commit=head,
                )
                commit = str(done.oid)
                there = {file.rfilename for file in _info(api, transfer, commit).siblings or []}
        if missing := sorted(set(names) - there):
            raise DataError(f"commit {commit} of {repo} has no {missing[0]}: is it in a .gitignore of the repository?")
        if not COMMIT.fullmatch(commit):
            raise DataError(f"{transfer.host} answered with no commit id: is that a Hugging Face Hub?")
        return commit

    def pull(self, repo: str, folder: Path, *, revision: str, **access: Unpack[Access]) -> dict[str, str]:
        """Downloads one commit of `repo` to a new or empty `folder`; returns the SHA-256 of each file by name.

        `revision` is the 40-hex id that `push` returned: a name such as main can mean other data tomorrow. The files
        arrive in a hidden folder beside `folder`, which takes its name when all that is promised holds.
        Raises DataError where the data cannot be trusted or the Hub cannot be reached, UsageError where the name, the
        revision, the folder or the rights are wrong. `folder` is then as it was before.
        """
        transfer = transfer_of(repo, self.repository, revision=revision, **access)
        folder = Path(os.path.abspath(folder))  # noqa: PTH100 - the last part must not be followed if it is a link
        with in_one_line(transfer):
            _refuse_occupied(folder)
            beside = next(parent for parent in folder.parents if parent.exists())
            with (
                tempfile.TemporaryDirectory(
                    dir=beside, prefix=f".{folder.name}.", suffix=".part", ignore_cleanup_errors=True
                ) as part,
                session(transfer) as api,
            ):
                data, cache = Path(part) / "data", Path(part) / "cache"
                data.mkdir()
                names = self._remote_names(api, transfer, beside)
                for name in names:
                    api.hf_hub_download(
                        repo, name, repo_type=transfer.kind, revision=revision, local_dir=data, cache_dir=cache
                    )
                    if (data / name).is_symlink() or not (data / name).is_file():
                        raise DataError(f"{repo} holds {name}, which is no plain file: it is not pulled")
                shutil.rmtree(data / ".cache", ignore_errors=True)  # the client's notes on what it downloaded
                digests = self._trusted(data, names, transfer)
                folder.parent.mkdir(parents=True, exist_ok=True)
                _refuse_occupied(folder)
                data.rename(folder)
        return digests

    def cached(self, repo: str, *, revision: str, **access: Unpack[Access]) -> Path:
        """The folder of one commit of `repo` in the cache of the Hub's client (HF_HUB_CACHE), downloaded where it is
        not there yet: nobody may change it, and `hf cache` removes it.

        What is asked for again needs no network. It is checked each time. Everything else, errors included, as `pull`
        says; the marker must lie at the root of the repository.
        """
        transfer = transfer_of(repo, self.repository, revision=revision, **access)
        with in_one_line(transfer):
            if (folder := self._in_cache(transfer)) is None:
                cache = Path(constants.HF_HUB_CACHE)
                cache.mkdir(parents=True, exist_ok=True)
                with session(transfer) as api:
                    names = self._remote_names(api, transfer, cache)
                    if self.marker not in names:
                        raise DataError(f"{repo} holds several of its kind: pull it, and load a folder of it")
                    for name in sorted(names, key=lambda name: name == self.marker):  # last: then all others are there
                        api.hf_hub_download(repo, name, repo_type=transfer.kind, revision=revision, cache_dir=cache)
                folder = self._in_cache(transfer)
            if folder is None:
                raise DataError(f"{repo} was downloaded and is not in {constants.HF_HUB_CACHE}: load it again")
            names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
            self._trusted(folder, [name for name in names if self._travels(name)], transfer)
        return folder

    def _travels(self, name: str) -> bool:
        """Whether a path in a repository is one of ours: one level deep at most, never hidden or with `..`."""
        endings = "|".join(re.escape(suffix) for suffix in self.suffixes)
        return re.fullmatch(rf"(?:\w[\w.+=-]*/)?\w[\w.+=-]*(?:{endings})", name, re.ASCII) is not None

    def _in_cache(self, transfer: Transfer) -> Path | None:
        """The folder of a commit that the client's cache has whole."""
        kept = try_to_load_from_cache(transfer.repo, self.marker, revision=transfer.revision, repo_type=transfer.kind)
        return Path(kept).parent if isinstance(kept, str) else None

    def _digests(self, folder: Path, names: Sequence[str]) -> dict[str, str]:
        """The SHA-256 of each file, once all that is promised holds; DataError otherwise."""
        known = self.check(folder, names)
        return {name: known.get(name) or sha256_of(folder / name) for name in names}

    def _trusted(self, folder: Path, names: Sequence[str], transfer: Transfer) -> dict[str, str]:
        """The same of what arrived, in the repository's name."""
        try:
            return self._digests(folder, names)
        except DataError as error:
            message = str(error).replace(f"{folder}{os.sep}", "").replace(str(folder), transfer.repo)
            raise DataError(f"{transfer.repo} at {(transfer.revision or '')[:12]}: {message}") from error

    def _local_names(self, folder: Path) -> list[str]:
        """The files that travel, relative to the folder. A link is refused: it may lead to what is not to be shared."""
        if not folder.is_dir():
            raise UsageError(f"{folder} is no folder: give the folder of one {self.holds}")
        names = []
        for entry in sorted([*folder.iterdir(), *folder.glob("*/*")]):
            relative = entry.relative_to(folder)
            if any(part.startswith(".") for part in relative.parts) or (entry.is_dir() and len(relative.parts) == 2):
                continue
            if entry.is_symlink() and (entry.suffix in self.suffixes or entry.is_dir()):
                raise UsageError(f"{entry} is a link: only plain files and folders are pushed")
            if entry.suffix in self.suffixes and entry.is_file():
                if not self._travels(relative.as_posix()):
                    raise UsageError(f"{entry} has a name that is not pushed: use letters, digits and _ . - only")
                names.append(relative.as_posix())
        return names

    def _remote_names(self, api: HfApi, transfer: Transfer, beside: Path) -> list[str]:
        """The files of a pinned commit that travel, once they are what is described and there is space for all."""
        repo = transfer.repo
        info = _info(api, transfer, transfer.revision)
        if info.sha != transfer.revision:
            raise DataError(f"{transfer.host} answered with another commit of {repo} than the pinned one")
        files = [file for file in info.siblings or [] if self._travels(file.rfilename)]
        names = sorted(file.rfilename for file in files)
        another = f"is it another {self.repository}?"
        if not any(PurePosixPath(name).name == self.marker for name in names):
            raise DataError(f"{repo} holds no {self.holds} of kcg (no {self.marker}): {another}")
        for file in files:
            if self.most_bytes is not None and (file.size or 0) > self.most_bytes:
                raise DataError(
                    f"{repo} holds {file.rfilename} of {file.size} bytes, more than the {self.most_bytes} of any "
                    f"{self.holds}: {another}"
                )
        needed, free = sum(file.size or 0 for file in files), shutil.disk_usage(beside).free
        if needed > free:
            raise DataError(f"disk full: {repo} needs {needed} bytes, {beside} has {free}: free some space")
        return names


def listing(checksums: Mapping[str, str]) -> str:
    """A folder's checksums, by name, as the text of a file."""
    return json.dumps(checksums, sort_keys=True, indent=1) + "\n"


def _info(api: HfApi, transfer: Transfer, revision: str | None = None) -> DatasetInfo | ModelInfo:
    """What the Hub says of a commit, its files and their sizes among it; of the latest of main by default."""
    ask = api.model_info if transfer.kind == "model" else api.dataset_info
    return ask(transfer.repo, revision=revision, files_metadata=True, timeout=transfer.limits.stall_s)


def _refuse_occupied(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder} is no folder: name a new or empty one")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty: name a new or empty folder")


def _head(api: HfApi, transfer: Transfer, branch: str, *, private: bool) -> str | None:
    """The latest commit of the branch. Repository and branch are created where they are missing."""
    repo, kind = transfer.repo, transfer.kind
    try:
        info = _info(api, transfer)
    except GatedRepoError:
        raise
    except RepositoryNotFoundError:
        api.create_repo(repo, repo_type=kind, private=private, exist_ok=True)
        info = _info(api, transfer)
    if private and info.private is False:
        raise UsageError(f"{repo} is public: push to another {kind}, or make it private in its settings first")
    if branch != MAIN:
        api.create_branch(repo, branch=branch, repo_type=kind, exist_ok=True)
        info = _info(api, transfer, branch)
    return info.sha
