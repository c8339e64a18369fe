"""Exports to and from datasets of the Hugging Face Hub: one commit up, one pinned commit down, whole or not at all.

Only Parquet, JSON and Markdown travel, from a folder and its subfolders one level deep; nothing that is pulled is ever
executed or unpickled. What is pushed was checked against its `checksums.json` before, what is pulled after it arrived.

No call waits for ever. Each connection, read and write of the HTTP client has a limit, whatever the environment says
(`HF_HUB_ETAG_TIMEOUT` and `HF_HUB_DOWNLOAD_TIMEOUT` can only shorten it), and so has the whole transfer. Files travel
over plain HTTP (Git LFS): the Hub's other transport, Xet, has a client of its own that these limits do not reach.
"""

from __future__ import annotations

import hashlib
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
from huggingface_hub import CommitOperationAdd, HfApi, constants, get_token, set_client_factory
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

from kcg.dataset.export import CHECKSUMS, read_export
from kcg.dataset.records import is_disk_full
from kcg.errors import DataError, KcgError, UsageError

SUFFIXES = (".parquet", ".json", ".md")
"""What travels. Everything else in a folder or a repository stays where it is."""

NAME = re.compile(r"(?:\w[\w.+=-]*/)?\w[\w.+=-]*\.(?:parquet|json|md)", re.ASCII)  # one level deep, never hidden or ..
COMMIT = re.compile(r"[0-9a-f]{40}")
LONGEST_WAIT_S = 60  # a Hub that asks for a longer pause is reported instead

FOREIGN = (
    OSError, httpx2.HTTPError, httpx2.InvalidURL, EntryNotFoundError, ValueError, RuntimeError, LookupError, TypeError,
    AttributeError,
)  # fmt: skip
"""What the Hub's client raises: for the network, for a refusal, and where an answer has not the shape of the Hub's."""


@dataclass(frozen=True)
class Limits:
    """How long a transfer may take."""

    stall_s: float = 60.0
    """Seconds for one connection, and for one read or write, in which nothing moves."""
    total_s: float = 6 * 3600.0
    """Seconds for the whole transfer; looked at before each request and at each piece that arrives."""


LIMITS = Limits()


@dataclass(frozen=True)
class _Transfer:
    """What an error has to name."""

    repo: str
    endpoint: str
    revision: str | None  # of a pull; a push has none
    limits: Limits

    @property
    def host(self) -> str:
        return urlsplit(self.endpoint).netloc.rpartition("@")[2]

    @property
    def page(self) -> str:
        return f"{self.endpoint}/datasets/{self.repo}"


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
    transfer = _transfer(repo, endpoint, None, limits)
    try:
        names = _local_names(folder)
        if not any(PurePosixPath(name).name == CHECKSUMS for name in names):
            raise UsageError(f"{folder} holds no export (no {CHECKSUMS}): write one with python -m kcg.dataset export")
        digests = _digests(folder, names)
        with _session(transfer):
            token = _token(token)
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
        raise _explained(error, transfer) from error
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
    transfer = _transfer(repo, endpoint, revision, limits)
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
            _session(transfer),
        ):
            data = Path(part) / "data"
            data.mkdir()
            api = HfApi(endpoint=transfer.endpoint, token=_token(token))
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
        raise _explained(error, transfer) from error
    return digests


def _transfer(repo: str, endpoint: str | None, revision: str | None, limits: Limits) -> _Transfer:
    try:
        validate_repo_id(repo)
    except HFValidationError:
        valid = False
    else:
        valid = repo.count("/") == 1 and repo.isascii()
    if not valid:
        raise UsageError(f"{_plain(repo)!r} names no dataset: give owner/name, such as tinycorp/kernels")
    endpoint = (endpoint or constants.ENDPOINT).rstrip("/")
    if urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).netloc:
        raise UsageError("the endpoint of the Hub (HF_ENDPOINT) is no address: give one such as https://huggingface.co")
    return _Transfer(repo, endpoint, revision, limits)


def _token(given: str | None) -> str | None:
    """The token given or the environment's, if it can go into a header; the client's error otherwise would show it."""
    token = given or (None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token())
    if token is not None and not re.fullmatch(r"[!-~]+", token):
        raise UsageError("the token is no token: it has spaces or characters that are not ASCII")
    return token


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


def _remote_names(api: HfApi, transfer: _Transfer, beside: Path) -> list[str]:
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
def _session(transfer: _Transfer) -> Iterator[None]:
    """The Hub's client under the limits of the transfer, over HTTP, without the log of its retries and telemetry."""
    limits, deadline = transfer.limits, time.monotonic() + transfer.limits.total_s

    def check() -> None:
        if time.monotonic() > deadline:
            raise DataError(f"{transfer.host} took longer than {limits.total_s:g} s in all: try again later")

    def before(request: httpx2.Request) -> None:
        check()
        given = request.extensions.get("timeout", {})
        kinds = ("connect", "read", "write", "pool")
        timeouts = {kind: min(given.get(kind) or limits.stall_s, limits.stall_s) for kind in kinds}
        request.extensions = {**request.extensions, "timeout": timeouts}

    def after(response: httpx2.Response) -> None:
        check()
        if (wait_s := _asked_wait_s(response)) > max(0.0, min(LONGEST_WAIT_S, deadline - time.monotonic())):
            raise DataError(f"{transfer.host} is busy and asks to wait: try again in {wait_s} s")
        if isinstance(response.stream, httpx2.SyncByteStream):
            response.stream = _Watched(response.stream, check)

    factory = _http._GLOBAL_CLIENT_FACTORY  # one that a host program may have set for its proxy or certificates

    def limited() -> httpx2.Client:
        client = factory()
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


def _explained(error: BaseException, transfer: _Transfer) -> KcgError:
    """The one line for what the client raised: of the first error in its chain that says what happened."""
    link: BaseException | None = error
    while link is not None:
        if (line := _line(link, transfer)) is not None:
            return line
        link = link.__cause__
    return DataError(
        f"{transfer.host} gave an answer that cannot be read ({type(error).__name__}: {_plain(str(error))})"
    )


def _line(error: BaseException, transfer: _Transfer) -> KcgError | None:
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
            return DataError(f"no connection to {host} ({_plain(str(error))}): are you offline?")
        case OSError() if is_disk_full(error):
            return DataError(f"disk full: {repo} could not be pulled: free some space")
        case OSError() if error.errno is not None:
            return UsageError(f"{error.filename or repo}: {error.strerror}")
        case ValueError() if str(error).startswith("Invalid metadata in README.md"):
            return UsageError(
                f"README.md has a header that the Hub refuses: {_plain(str(error).partition(chr(10))[2])}"
            )
    return None


def _refusal(error: HfHubHTTPError, transfer: _Transfer) -> KcgError:
    """The line for an answer that is no success. The client's own text is not shown: it can hold a signed address."""
    repo, host, pushing = transfer.repo, transfer.host, transfer.revision is None
    status = error.response.status_code
    said = f" ({_plain(error.server_message)})" if error.server_message else ""
    if isinstance(error, GatedRepoError):
        return UsageError(f"{repo} is gated: accept its terms at {transfer.page} and set HF_TOKEN")
    if isinstance(error, RevisionNotFoundError):
        wanted = transfer.revision or "main"
        return UsageError(f"{repo} has no commit {wanted}: see {transfer.page}/commits/main")
    if isinstance(error, RepositoryNotFoundError):
        return UsageError(f"no dataset {repo} on {host} that you may see: check the name; a private one needs HF_TOKEN")
    if status == 401:
        return UsageError(f"{host} does not accept the token (401): set HF_TOKEN to a valid one")
    if status == 403:
        return UsageError(
            f"the token may not {'write to' if pushing else 'read'} {repo} (403){said}: set HF_TOKEN to one that may"
        )
    if status == 412:
        return DataError(f"{repo} got another commit meanwhile: push again")
    if status == 404:
        return UsageError(f"{host} has no such address (404){said}: is it a Hugging Face Hub?")
    return DataError(f"{host} refused the request for {repo} ({status}){said}: try again later")


def _plain(text: str) -> str:
    """Foreign text as the start of one line, without what could steer a terminal."""
    first = (text.strip().splitlines() or [""])[0]
    return "".join(c if c.isprintable() else "?" for c in first)[:200]
