"""A Hub that is absent, refuses, hangs or answers nonsense is one line, and no call waits for ever."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from huggingface_hub import constants, file_download

from kcg.dataset.publish import EXPORTS
from kcg.errors import DataError, UsageError
from kcg.hub.client import Limits
from tests.hub.checks import contents, is_untouched, refused
from tests.hub.server import READ_TOKEN, TOKEN, Hub
from tests.slow import first, first_rows

REPO = "owner/name"
push, pull = EXPORTS.push, EXPORTS.pull
SHORT = Limits(stall_s=0.2, total_s=0.6)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own limits for downloads, as short."""
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", SHORT.stall_s)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", SHORT.stall_s)
    monkeypatch.setattr(file_download, "_ETAG_RETRY_TIMEOUT", SHORT.stall_s)


def test_without_a_connection_there_is_one_line(folder: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as bound:  # nothing listens there
        bound.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(DataError, match=r"no connection to 127\.0\.0\.1:\d+ .*are you offline") as error:
            pull(REPO, target, revision="0" * 40, endpoint=endpoint)
        refused(error)
        with pytest.raises(DataError, match="no connection to"):
            push(folder, REPO, token=TOKEN, endpoint=endpoint)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for call in (
        lambda: pull(REPO, target, revision="0" * 40, endpoint=endpoint),
        lambda: push(folder, REPO, token=TOKEN, endpoint=endpoint),
    ):
        with pytest.raises(UsageError, match="offline mode: unset HF_HUB_OFFLINE"):
            call()
    with pytest.raises(UsageError, match="the endpoint of the Hub"):
        pull(REPO, target, revision="0" * 40, endpoint="ftp://hub")
    assert is_untouched(target)


def test_a_wrong_or_missing_token_is_one_line_that_does_not_show_it(hub: Hub, folder: Path, target: Path) -> None:
    commit = hub.repo(files=contents(folder)).head
    for token, message in (
        ("hf_wrong", r"does not accept the token \(401\)"),
        (READ_TOKEN, r"may not write to owner/name \(403\) \(.*write token.*\): set HF_TOKEN"),
        (None, "no token to push to owner/name: set HF_TOKEN"),
        ("two words", "the token is no token"),
        ("line\nbreak", "the token is no token"),
    ):
        with pytest.raises(UsageError, match=message) as error:
            push(folder, REPO, token=token, endpoint=hub.endpoint)
        assert token is None or token not in refused(error)
    with pytest.raises(UsageError, match=r"no rights to create|may not write to owner/new"):
        push(folder, "owner/new", token=READ_TOKEN, endpoint=hub.endpoint)
    with pytest.raises(UsageError, match=r"\(401\)"):
        pull(REPO, target, revision=commit, token="hf_wrong", endpoint=hub.endpoint)
    hub.answers["/revision/"] = (403, {"X-Error-Code": "GatedRepo"})
    with pytest.raises(UsageError, match=r"is gated: accept its terms at http.*/datasets/owner/name and set HF_TOKEN"):
        pull(REPO, target, revision=commit, endpoint=hub.endpoint)
    assert is_untouched(target) and len(hub.repos[REPO].commits) == 1


def test_a_missing_dataset_or_revision_is_one_line(hub: Hub, folder: Path, target: Path) -> None:
    hub.repo()
    for repo, message in (("owner/none", "no dataset owner/none"), (REPO, f"has no commit {'0' * 40}: see http")):
        with pytest.raises(UsageError, match=message) as error:
            pull(repo, target, revision="0" * 40, token=READ_TOKEN, endpoint=hub.endpoint)
        refused(error)
    with pytest.raises(UsageError, match=r"no such address \(404\).*is it a Hugging Face Hub"):
        pull(REPO, target, revision="0" * 40, endpoint=f"{hub.endpoint}/elsewhere")
    assert is_untouched(target)


@pytest.mark.parametrize("where", first(1, ["GET /api/datasets/", "PUT /upload/", "/commit/"]))
def test_a_hub_that_hangs_ends_a_push(hub: Hub, folder: Path, where: str) -> None:
    head = hub.repo().head
    hub.hang = where
    with pytest.raises(DataError, match=r"did not answer in time|took longer than 0\.6 s") as error:
        push(folder, REPO, token=TOKEN, endpoint=hub.endpoint, limits=SHORT)
    refused(error)
    assert hub.repos[REPO].head == head


@pytest.mark.parametrize(
    ("how", "where"),
    first_rows(2, [("hang", "/revision/"), ("hang", "HEAD /"), ("cut", "/storage/"), ("drip", "/resolve/")]),
)
def test_a_hub_that_hangs_ends_a_pull(
    hub: Hub, folder: Path, target: Path, impatient: None, how: str, where: str
) -> None:
    commit = hub.repo(files=contents(folder)).head
    setattr(hub, how, where)
    with pytest.raises(DataError, match=r"did not answer in time|took longer than 0\.6 s") as error:
        pull(REPO, target, revision=commit, endpoint=hub.endpoint, limits=SHORT)
    refused(error)
    assert is_untouched(target)


def test_a_hub_that_is_busy_or_broken_is_one_line(hub: Hub, folder: Path, target: Path) -> None:
    commit = hub.repo(files=contents(folder)).head
    for status, headers, message in (
        (500, {}, r"refused the request for owner/name \(500\) \(told to\): try again later"),
        (429, {"Retry-After": "3600"}, "is busy and asks to wait: try again in 3600 s"),
        (429, {"ratelimit": '"api";r=0;t=255', "ratelimit-policy": '"fixed window";"api";q=500;w=300'}, "in 255 s"),
        (200, {}, "cannot be read|another commit"),
        (418, {"X-Error-Message": "\x1b[2Jpwned"}, r"\?\[2Jpwned"),
    ):
        hub.answers = {"/revision/": (status, headers)}
        with pytest.raises(DataError, match=message) as error:
            pull(REPO, target, revision=commit, endpoint=hub.endpoint)
        assert "\x1b" not in refused(error)
    hub.answers = {"/preupload/": (429, {"Retry-After": "3600"})}
    with pytest.raises(DataError, match="try again in 3600 s"):
        push(folder, REPO, token=TOKEN, endpoint=hub.endpoint)
    hub.answers = {"PUT /upload/": (403, {})}
    with pytest.raises(UsageError, match=r"may not write to owner/other \(403\)"):
        push(folder, "owner/other", token=TOKEN, endpoint=hub.endpoint)
    assert is_untouched(target)
