"""Sdist and wheel hold all of kcg, are what an index takes, and work where there is no checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

from evaluation.first_minutes import PYTHONS
from kcg import __version__
from kcg.errors import ExitCode
from tests.commands import python
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parent.parent
SOURCES = ("kcg", "docs", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "CHANGELOG.md", "CITATION.cff")
DATA = {path.relative_to(ROOT / "kcg") for path in (ROOT / "kcg").rglob("*") if path.is_file()}
DATA = {path for path in DATA if path.suffix not in (".py", ".pyc")}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built of a copy, since building leaves folders beside the sources."""
    copy, out = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("sdist")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy / name)
    (copy / "tests").mkdir()
    shutil.copy(__file__, copy / "tests")  # what setuptools would take in by itself
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    done = python("-c", code, out, cwd=copy)
    assert done.returncode == 0, done.stderr
    (built,) = out.glob("kcg-*.tar.gz")
    return built


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built of the sdist alone, as pip does for whoever has no wheel."""
    out = tmp_path_factory.mktemp("wheel")
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    done = python("-m", "pip", "wheel", *options, "--wheel-dir", out, sdist)
    assert done.returncode == 0, done.stderr
    (built,) = out.glob("kcg-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    options = ("--quiet", "--no-deps", "--no-index", "--no-compile")
    done = python("-m", "pip", "install", *options, "--target", folder, wheel)
    assert done.returncode == 0, done.stderr
    return folder


def kcg(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The console script as it was installed, from a folder that is no checkout."""
    command = [sys.executable, str(installed / "bin" / "kcg"), *arguments]
    settings = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(
        command, cwd=folder, env=settings, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def test_every_file_that_is_no_python_is_named_as_package_data() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-data"]
    named = {path.relative_to(ROOT / "kcg") for pattern in data["kcg"] for path in (ROOT / "kcg").glob(pattern)}
    assert named == DATA
    assert {path.suffix for path in DATA} >= {".jinja", ".safetensors"}


def test_the_wheel_has_every_module_and_all_data(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {Path(name) for name in archive.namelist()}
        (entries,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "kcg = kcg.__main__:main" in archive.read(entries).decode()
    modules = {path.relative_to(ROOT) for path in (ROOT / "kcg").rglob("*.py")}
    assert modules | {"kcg" / path for path in DATA} <= held
    assert {path.parts[0] for path in held} == {"kcg", f"kcg-{__version__}.dist-info"}


def test_the_sdist_has_all_that_the_wheel_has_the_documents_and_no_tests(sdist: Path, wheel: Path) -> None:
    with tarfile.open(sdist) as archive:
        held = {Path(*Path(one.name).parts[1:]) for one in archive.getmembers() if one.isfile()}
    with zipfile.ZipFile(wheel) as archive:
        packaged = {Path(name) for name in archive.namelist() if name.startswith("kcg/")}
    assert packaged <= held and {Path(name) for name in SOURCES if (ROOT / name).is_file()} <= held
    assert {path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md")} <= held
    assert not [path for path in held if path.parts[0] == "tests"]
    assert Path("kcg/py.typed") in packaged, "whoever imports it has its types"


def metadata_of(built: Path) -> Metadata:
    """What an index reads of a wheel or an sdist. Raises where a field is none that it takes."""
    if built.suffix == ".whl":
        with zipfile.ZipFile(built) as archive:
            text = archive.read(f"kcg-{__version__}.dist-info/METADATA")
    else:
        with tarfile.open(built) as packed:
            member = packed.extractfile(f"kcg-{__version__}/PKG-INFO")
            assert member is not None
            text = member.read()
    return Metadata.from_email(text, validate=True)


def test_what_an_index_is_told_is_valid_and_says_what_is_so(sdist: Path, wheel: Path) -> None:
    assert sdist.name == f"kcg-{__version__}.tar.gz" and wheel.name == f"kcg-{__version__}-py3-none-any.whl"
    for found in map(metadata_of, (sdist, wheel)):
        assert (found.name, str(found.version), found.license_expression) == ("kcg", __version__, "MIT")
        assert found.license_files == ["LICENSE"] and found.author == "kcg contributors"
        assert found.description_content_type == "text/markdown"
        assert (found.description or "").strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()
        assert not found.project_urls and not found.home_page, "there is no page of it"
        classifiers = found.classifiers or []
        versions = [one.rpartition(" ")[2] for one in classifiers if re.search(r":: 3\.\d+$", one)]
        assert tuple(versions) == PYTHONS and found.requires_python == f">={versions[0]}"
        assert "Typing :: Typed" in classifiers
        assert not [one for one in classifiers if one.startswith("License ::")], "the expression says it"


@pytest.mark.slow
def test_what_is_installed_has_its_commands_and_says_how_to_get_more(installed: Path, tmp_path: Path) -> None:
    assert kcg(installed, tmp_path, "--version").stdout == f"kcg {__version__}\n"
    listed = kcg(installed, tmp_path, "list")
    assert listed.returncode == ExitCode.OK and "pip install 'kcg[clang]'" in listed.stdout, listed.stderr
    assert "constraints.txt" not in listed.stdout


@pytest.mark.slow
def test_what_is_installed_works_without_a_checkout(installed: Path, tmp_path: Path) -> None:
    doctor = kcg(installed, tmp_path, "doctor", "--device", "CPU:X86")
    assert doctor.returncode == ExitCode.OK and "opens" in doctor.stdout, doctor.stderr
    assert "constraints.txt" not in doctor.stdout
    planned = kcg(installed, tmp_path, "optimize", "flux/mini", "--dry-run", "--device", "CPU:X86")
    assert planned.returncode == ExitCode.OK, planned.stderr
    assert planned.stdout.startswith("would optimise flux mini on ")
    assert list(tmp_path.iterdir()) == []
