"""A small Hub that each test has for itself, an export to push to it, and a place to pull into."""

from __future__ import annotations

import functools
import os
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from kcg.dataset.export import export
from kcg.dataset.journal import Journal
from tests.dataset.test_journal import fill
from tests.hub.server import Hub, serve


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite is offline; these tests reach a server of their own, without the token of whoever runs them."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", os.devnull)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE", "HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session", autouse=True)
def certificates_read_once() -> Iterator[None]:
    """The client reads those of all authorities whenever it begins: 0.1 s, for servers that ask for none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        yield


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve() as running:
        yield running


@pytest.fixture
def usual_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The one that a client asks which was told of none."""
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)  # and what the client made of it when it was imported:
    template = f"{hub.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    return hub


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed by a test: `folder` is a copy."""
    folder = tmp_path_factory.mktemp("exported")
    with Journal.open(folder / "a.sqlite") as journal:
        fill(journal)
        export(journal, folder / "out")
    return folder / "out"


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    """A fresh export that a test may change."""
    return Path(shutil.copytree(exported, tmp_path / "local" / "out"))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "pulled").mkdir()
    return tmp_path / "pulled" / "here"
