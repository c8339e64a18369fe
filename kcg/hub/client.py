"""The Hugging Face Hub's client under limits, and what it raises as one line.

No call waits for ever. The client itself retries, resumes downloads, and gives up on one that stalls
(`HF_HUB_DOWNLOAD_TIMEOUT`, `HF_HUB_ETAG_TIMEOUT`). It has no limit for its other requests, for a whole transfer, and
for how long a server may ask it to wait: those are set here (`Limits`). Files travel over plain HTTP (Git LFS): the
Hub's other transport, Xet, has a client of its own that these limits do not reach.
"""

from __future__ import annotations

import logging
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TypedDict, Unpack
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import HfApi, constants, get_token, set_client_factory
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


class Access(TypedDict, total=False):
    """How the Hub is asked, where it is not as the environment says."""

    token: str | None  # that of HF_TOKEN or `hf auth login` by default; a public repository is pulled without
    endpoint: str | None  # HF_ENDPOINT or huggingface.co by default
    limits: Limits


@dataclass(frozen=True)
class Transfer:
    """What is asked of which Hub, and what an error has to name."""

    repo: str
    kind: str  # of repository: dataset or model
    endpoint: str
    revision: str | None  # of a pull; a push has none
    limits: Limits
    token: str | None = field(repr=False)

    @property
    def host(self) -> str:
        return urlsplit(self.endpoint).netloc.rpartition("@")[2]

    @property
    def page(self) -> str:
        return f"{self.endpoint}/{'' if self.kind == 'model' else self.kind + 's/'}{self.repo}"


def transfer_of(repo: str, kind: str, *, revision: str | None = None, **access: Unpack[Access]) -> Transfer:
    """Raises UsageError where the name, the endpoint, or the revision of a pull is none."""
    try:
        validate_repo_id(repo)
    except HFValidationError:
        valid = False
    else:
        valid = repo.count("/") == 1 and repo.isascii()
    if not valid:
        raise UsageError(f"{_first_line(repo)!r} names no {kind}: give owner/name, such as tinycorp/kernels")
    endpoint = (access.get("endpoint") or constants.ENDPOINT).rstrip("/")
    if urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).netloc:
        raise UsageError("the endpoint of the Hub (HF_ENDPOINT) is no address: give one such as https://huggingface.co")
    made = Transfer(repo, kind, endpoint, revision, access.get("limits", LIMITS), access.get("token"))
    if revision is not None and not COMMIT.fullmatch(revision):
        raise UsageError(
            f"revision {revision!r} is no pinned commit: give the 40 hex digits that push printed, or one from "
            f"{made.page}/commits/main"
        )
    return made


def _token_of(given: str | None) -> str | None:
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
def session(transfer: Transfer) -> Iterator[HfApi]:
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
            yield HfApi(endpoint=transfer.endpoint, token=_token_of(transfer.token))
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


@contextmanager
def in_one_line(transfer: Transfer) -> Iterator[None]:
    """Whatever the client raises inside is a KcgError of one line: of the first error in its chain that says what
    happened."""
    try:
        yield
    except KcgError:
        raise
    except FOREIGN as error:
        link: BaseException | None = error
        while link is not None:
            if (line := _line(link, transfer)) is not None:
                raise line from error
            link = link.__cause__
        raise DataError(
            f"{transfer.host} gave an answer that cannot be read ({type(error).__name__}: {_first_line(str(error))})"
        ) from error


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
