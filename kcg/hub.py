"""Folders to and from repositories of the Hugging Face Hub: one commit up, one pinned commit down, whole or not at all.

What travels is a kind of cargo: datasets' exports (`kcg.dataset.publish`), predictors (`kcg.predictor.publish`). Only
files of its suffixes travel, from a folder and its subfolders one level deep; nothing that is pulled is ever executed
or unpickled. What is pushed was checked before, what is pulled after it arrived. Errors are one line each.

No call waits for ever. The Hub's own client retries, resumes downloads, and gives up on one that stalls
(`HF_HUB_DOWNLOAD_TIMEOUT`, `HF_HUB_ETAG_TIMEOUT`). It has no limit for its other requests, for a whole transfer, and
for how long a server may ask it to wait: those are set here (`Limits`). Files travel over plain HTTP (Git LFS): the
Hub's other transport, Xet, has a client of its own that these limits do not reach.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import (
    CommitOperationAdd,
    DatasetInfo,
    HfApi,
    ModelInfo,
    constants,
    get_token,
    set_client_factory,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import _http
from huggingface_hub.utils import logging as hub_logging
from huggingface_hub.utils._http import parse_ratelimit_headers
from huggingface_hub.utils._validators import validate_repo_id
from huggingface_hub.utils.tqdm import disable_progress_bars

from kcg.errors import DataError, KcgError, UsageError
from kcg.files import is_disk_full
from kcg.nouns import plain

COMMIT = re.compile(r"[0-9a-f]{40}")
BRANCH = re.compile(r"\w[\w.-]{0,99}", re.ASCII)
MAIN = "main"
LONGEST_WAIT_S = 60  # a Hub that asks for a longer pause is reported instead

FOREIGN = (
    OSError,
    httpx2.HTTPError,
    httpx2.InvalidURL,
    EntryNotFoundError,
    ValueError,
    RuntimeError,
    LookupError,
    TypeError,
    AttributeError,
)
"""What the Hub's client raises: for the network, for a refusal, and where an answer has not the shape of the Hub's."""


@dataclass(frozen=True)
class Limits:
    """How long a transfer may take, where the Hub's client has no limit of its own."""

    stall_s: float = 60.0
    """Seconds for one connection, read or write of a request that is no download, in which nothing moves."""
    total_s: float = 6 * 3600.0
    """Seconds for the whole transfer; looked at before each request and at each piece that arrives."""


LIMITS = Limits()


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
    message: str = "kcg: push"  # of a commit, where none is given

    def travels(self, name: str) -> bool:
        """Whether a path in a repository is one of ours: one level deep at most, never hidden or with `..`."""
        endings = "|".join(re.escape(suffix) for suffix in self.suffixes)
        return re.fullmatch(rf"(?:\w[\w.+=-]*/)?\w[\w.+=-]*(?:{endings})", name, re.ASCII) is not None


def push_folder(
    folder: Path,
    repo: str,
    *,
    cargo: Cargo,
    message: str = "",
    branch: str = MAIN,
    private: bool = False,
    token: str | None = None,
    endpoint: str | None = None,
    limits: Limits = LIMITS,
) -> str:
    """Uploads a folder's cargo to `repo` in one commit, with the message of the cargo unless one is given; returns its
    40-hex id.

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
            head = _head(api, transfer, branch, private=private)
            additions = [CommitOperationAdd(name, folder / name) for name in names]
            for addition in additions:
                # one at a time, in this thread: in the client's own pool an upload could not be interrupted
                api.preupload_lfs_files(repo, [addition], repo_type=cargo.kind, revision=branch, free_memory=False)
            if cargo.digests(folder, names) != digests:
                raise DataError(f"{folder} changed while it was pushed: push it again")
            # the commit is refused where another has come since: its files would mix with those that did not change
            done = api.create_commit(
                repo,
                additions,
                commit_message=message or cargo.message,
                repo_type=cargo.kind,
                revision=branch,
                parent_commit=head,
            )
            commit = str(done.oid)
            siblings = _info(api, transfer, commit).siblings or []
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
    transfer = _pinned(repo, endpoint, revision, limits, cargo)
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
            digests = _trusted(data, names, cargo, transfer)
            folder.parent.mkdir(parents=True, exist_ok=True)
            _refuse_occupied(folder)
            data.rename(folder)
    except KcgError:
        raise
    except FOREIGN as error:
        raise explained(error, transfer) from error
    return digests


def cached_folder(
    repo: str,
    *,
    cargo: Cargo,
    revision: str,
    token: str | None = None,
    endpoint: str | None = None,
    limits: Limits = LIMITS,
) -> Path:
    """The folder of one commit of `repo` in the cache of the Hub's client (HF_HUB_CACHE), downloaded where it is not
    there yet: nobody may change it, and `hf cache` removes it.

    What is asked for again needs no network. The cargo is checked each time. Everything else, errors included, as
    `pull_folder` says; the marker of the cargo must lie at the root of the repository.
    """
    transfer = _pinned(repo, endpoint, revision, limits, cargo)
    try:
        if (folder := _in_cache(transfer, cargo)) is None:
            cache = Path(constants.HF_HUB_CACHE)
            cache.mkdir(parents=True, exist_ok=True)
            with session(transfer):
                api = HfApi(endpoint=transfer.endpoint, token=token_of(token))
                names = _remote_names(api, transfer, cargo, cache)
                if cargo.marker not in names:
                    raise DataError(f"{repo} holds several of its kind: pull it, and load a folder of it")
                for name in sorted(names, key=lambda name: name == cargo.marker):  # last: then all others are there
                    api.hf_hub_download(repo, name, repo_type=cargo.kind, revision=revision, cache_dir=cache)
            folder = _in_cache(transfer, cargo)
        if folder is None:
            raise DataError(f"{repo} was downloaded and is not in {constants.HF_HUB_CACHE}: load it again")
        names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
        _trusted(folder, [name for name in names if cargo.travels(name)], cargo, transfer)
    except KcgError:
        raise
    except FOREIGN as error:
        raise explained(error, transfer) from error
    return folder


def _in_cache(transfer: Transfer, cargo: Cargo) -> Path | None:
    """The folder of a commit that the client's cache has whole."""
    kept = try_to_load_from_cache(transfer.repo, cargo.marker, revision=transfer.revision, repo_type=cargo.kind)
    return Path(kept).parent if isinstance(kept, str) else None


def _pinned(repo: str, endpoint: str | None, revision: str, limits: Limits, cargo: Cargo) -> Transfer:
    """The transfer of one commit. Raises UsageError where the revision is none."""
    transfer = transfer_of(repo, endpoint, revision, limits, kind=cargo.kind)
    if not COMMIT.fullmatch(revision):
        raise UsageError(
            f"revision {revision!r} is no pinned commit: give the 40 hex digits that push printed, or one from "
            f"{transfer.page}/commits/main"
        )
    return transfer


def _trusted(folder: Path, names: Sequence[str], cargo: Cargo, transfer: Transfer) -> dict[str, str]:
    """The SHA-256 of each file of the cargo that arrived, once all that it promises holds; DataError otherwise."""
    try:
        return cargo.digests(folder, names)
    except DataError as error:
        message = str(error).replace(f"{folder}{os.sep}", "").replace(str(folder), transfer.repo)
        raise DataError(f"{transfer.repo} at {(transfer.revision or '')[:12]}: {message}") from error


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
    info = _info(api, transfer, transfer.revision)
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


# -- the Hub's client


@dataclass(frozen=True)
class Transfer:
    """What an error has to name."""

    repo: str
    endpoint: str
    revision: str | None  # of a pull; a push has none
    limits: Limits
    kind: str  # of repository: dataset or model

    @property
    def host(self) -> str:
        return urlsplit(self.endpoint).netloc.rpartition("@")[2]

    @property
    def page(self) -> str:
        return f"{self.endpoint}/{'' if self.kind == 'model' else self.kind + 's/'}{self.repo}"


def transfer_of(repo: str, endpoint: str | None, revision: str | None, limits: Limits, *, kind: str) -> Transfer:
    try:
        validate_repo_id(repo)
    except HFValidationError:
        valid = False
    else:
        valid = repo.count("/") == 1 and repo.isascii()
    if not valid:
        raise UsageError(f"{_first_line(repo)!r} names no {kind}: give owner/name, such as tinycorp/kernels")
    endpoint = (endpoint or constants.ENDPOINT).rstrip("/")
    if urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).netloc:
        raise UsageError("the endpoint of the Hub (HF_ENDPOINT) is no address: give one such as https://huggingface.co")
    return Transfer(repo, endpoint, revision, limits, kind)


def token_of(given: str | None) -> str | None:
    """The token given or the environment's, if it can go into a header; the client's error otherwise would show it."""
    token = given or (None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token())
    if token is not None and not re.fullmatch(r"[!-~]+", token):
        raise UsageError("the token is no token: it has spaces or characters that are not ASCII")
    return token


class _Watched(httpx2.SyncByteStream):
    """The body of an answer, which ends with an error when the time is over."""

    def __init__(self, stream: httpx2.SyncByteStream, check: Callable[[], None]) -> None:
        self._stream, self._check = stream, check

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._stream:
            self._check()
            yield piece

    def close(self) -> None:
        self._stream.close()


@contextmanager
def session(transfer: Transfer) -> Iterator[None]:
    """The Hub's client under the limits of the transfer, over HTTP, without the log of its retries and telemetry."""
    limits, deadline = transfer.limits, time.monotonic() + transfer.limits.total_s

    def check() -> None:
        if time.monotonic() > deadline:
            raise DataError(f"{transfer.host} took longer than {limits.total_s:g} s in all: try again later")

    def before(request: httpx2.Request) -> None:
        check()

    def after(response: httpx2.Response) -> None:
        check()
        if (wait_s := _asked_wait_s(response)) > max(0.0, min(LONGEST_WAIT_S, deadline - time.monotonic())):
            raise DataError(f"{transfer.host} is busy and asks to wait: try again in {wait_s} s")
        if isinstance(response.stream, httpx2.SyncByteStream):
            response.stream = _Watched(response.stream, check)

    factory = _http._GLOBAL_CLIENT_FACTORY  # one that a host program may have set for its proxy or certificates

    def limited() -> httpx2.Client:
        client = factory()
        client.timeout = httpx2.Timeout(limits.stall_s)  # of what says no other: creating, uploading, committing
        hooks = client.event_hooks
        client.event_hooks = {"request": [*hooks["request"], before], "response": [*hooks["response"], after]}
        return client

    forced = ("HF_HUB_DISABLE_XET", "HF_HUB_DISABLE_TELEMETRY")
    earlier, verbosity = {name: getattr(constants, name) for name in forced}, hub_logging.get_verbosity()
    try:
        for name in forced:
            setattr(constants, name, True)
        hub_logging.set_verbosity(logging.CRITICAL)
        set_client_factory(limited)
        with warnings.catch_warnings(), nullcontext() if sys.stderr.isatty() else disable_progress_bars():
            warnings.simplefilter("ignore")  # on how the client uses its own libraries, and on a card without a header
            yield
    finally:
        set_client_factory(factory)
        hub_logging.set_verbosity(verbosity)
        for name, value in earlier.items():
            setattr(constants, name, value)


def _asked_wait_s(response: httpx2.Response) -> int:
    """Seconds that the server asks to wait; the client would sleep them, however many."""
    if response.status_code < 400:
        return 0
    rate = parse_ratelimit_headers(response.headers) if response.status_code == 429 else None
    asked = response.headers.get("Retry-After", "").strip()
    return max(rate.reset_in_seconds if rate and rate.remaining == 0 else 0, int(asked) if asked.isdecimal() else 0)


def explained(error: BaseException, transfer: Transfer) -> KcgError:
    """The one line for what the client raised: of the first error in its chain that says what happened."""
    link: BaseException | None = error
    while link is not None:
        if (line := _line(link, transfer)) is not None:
            return line
        link = link.__cause__
    return DataError(
        f"{transfer.host} gave an answer that cannot be read ({type(error).__name__}: {_first_line(str(error))})"
    )


def _line(error: BaseException, transfer: Transfer) -> KcgError | None:
    repo, host = transfer.repo, transfer.host
    match error:
        case KcgError():
            return error
        case OfflineModeIsEnabled():
            return UsageError(f"{repo} is out of reach in offline mode: unset HF_HUB_OFFLINE")
        case HfHubHTTPError():
            return _refusal(error, transfer)
        case httpx2.TimeoutException():
            return DataError(f"{host} did not answer in time: try again later")
        case httpx2.HTTPError():
            return DataError(f"no connection to {host} ({_first_line(str(error))}): are you offline?")
        case OSError() if is_disk_full(error):
            return DataError(f"disk full: {repo} could not be pulled: free some space")
        case OSError() if error.errno is not None:
            return UsageError(f"{error.filename or repo}: {error.strerror}")
        case ValueError() if str(error).startswith("Invalid metadata in README.md"):
            return UsageError(
                f"README.md has a header that the Hub refuses: {_first_line(str(error).partition(chr(10))[2])}"
            )
    return None


def _refusal(error: HfHubHTTPError, transfer: Transfer) -> KcgError:
    """The line for an answer that is no success. The client's own text is not shown: it can hold a signed address."""
    repo, host, pushing = transfer.repo, transfer.host, transfer.revision is None
    status = error.response.status_code
    message = f" ({_first_line(error.server_message)})" if error.server_message else ""
    if isinstance(error, GatedRepoError):
        return UsageError(f"{repo} is gated: accept its terms at {transfer.page} and set HF_TOKEN")
    if isinstance(error, RevisionNotFoundError):
        wanted = transfer.revision or "main"
        return UsageError(f"{repo} has no commit {wanted}: see {transfer.page}/commits/main")
    if isinstance(error, RepositoryNotFoundError):
        return UsageError(
            f"no {transfer.kind} {repo} on {host} that you may see: check the name; a private one needs HF_TOKEN"
        )
    if status == 401:
        return UsageError(f"{host} does not accept the token (401): set HF_TOKEN to a valid one")
    if status == 403:
        return UsageError(
            f"the token may not {'write to' if pushing else 'read'} {repo} (403){message}: set HF_TOKEN to one that may"
        )
    if status == 412:
        return DataError(f"{repo} got another commit meanwhile: push again")
    if status == 404:
        return UsageError(f"{host} has no such address (404){message}: is it a Hugging Face Hub?")
    return DataError(f"{host} refused the request for {repo} ({status}){message}: try again later")


def _first_line(text: str) -> str:
    """The first line of a foreign text."""
    first = (text.strip().splitlines() or [""])[0]
    return plain(first, 200)
