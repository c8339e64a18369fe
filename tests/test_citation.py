"""CITATION.cff is valid by its schema (1.2.0), names nobody, and agrees with the package."""

from __future__ import annotations

import tomllib
from pathlib import Path

import yaml

import kcg

ROOT = Path(__file__).parent.parent
REQUIRED = {"authors", "cff-version", "message", "title"}
ALLOWED = REQUIRED | {
    "abstract", "commit", "contact", "date-released", "doi", "identifiers", "keywords", "license", "license-url",
    "preferred-citation", "references", "repository", "repository-artifact", "repository-code", "type", "url",
    "version",
}  # fmt: skip
"""The schema's own lists: it allows no other key."""


def test_the_citation_is_valid_and_agrees_with_the_package() -> None:
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert found.keys() >= REQUIRED and found.keys() <= ALLOWED
    assert found["cff-version"] == "1.2.0" and found["type"] == "software"
    assert found["authors"] == [{"name": "kcg contributors"}], "an entity has a name, and no person is invented"
    assert found["version"] == kcg.__version__
    assert found["license"] == project["license"] and found["keywords"] == project["keywords"]
    assert project["description"].lower() in found["title"].lower()
