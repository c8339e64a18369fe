"""Most tests that make a page read its words: for them matplotlib, which is most of the time that a page takes, draws
nothing. What looks at pictures, or at what no number may break, asks for `drawn`.

For the conftest.py of a folder whose tests make pages. What fixtures of a module make is drawn: they come first."""

from __future__ import annotations

import pytest


@pytest.fixture
def drawn() -> None:
    """Pictures as a reader gets them."""


@pytest.fixture(autouse=True)
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures without a mark; their labels, lists and tips are as ever."""
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr("kcg.pictures._drawn", lambda *_, **__: [])
