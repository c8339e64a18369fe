"""Every stored figure says which code made it, and whether that code was committed."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcg import provenance as module
from kcg.cli import record_results
from kcg.dataset.columns import MADE_BY
from kcg.dataset.export import export
from kcg.dataset.journal import Journal
from kcg.provenance import UNKNOWN, provenance, read

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "evaluation" / "results"
SINCE = "2026-11-25"  # results of earlier days do not say whether their tree was dirty, and nobody knows any more
BEFORE = {"faults_gpu.json", "fit_roofline.json"}  # files of such days that have no date where the figures are


def git(folder: Path, *arguments: str) -> str:
    settings = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *settings, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with a package, a script, its results and a document, all committed."""
    root = tmp_path / "checkout"
    for name in ("kcg/provenance.py", "evaluation/script.py", "evaluation/results/a.json", "docs/a.md", ".gitignore"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("ignored.py\n__pycache__/\n" if name == ".gitignore" else name)
    git(tmp_path, "init", "-q", str(root))
    git(root, "add", "-A")
    git(root, "commit", "-qm", "one")
    return root


def of(root: Path) -> tuple[str, bool | None]:
    found = read(root / "kcg" / "provenance.py")
    return found["revision"], found["dirty"]


def test_a_clean_checkout_has_its_whole_revision_and_is_not_dirty(checkout: Path) -> None:
    assert of(checkout) == (git(checkout, "rev-parse", "HEAD"), False)
    git(checkout, "commit", "-q", "--allow-empty", "-m", "two")
    assert of(checkout) == (git(checkout, "rev-parse", "HEAD"), False)


@pytest.mark.parametrize(
    ("change", "dirty"),
    [
        (lambda root: (root / "kcg" / "provenance.py").write_text("changed"), True),
        (lambda root: (root / "docs" / "a.md").write_text("changed"), True),
        (lambda root: (root / "evaluation" / "script.py").unlink(), True),
        (lambda root: git(root, "rm", "-q", "--cached", "docs/a.md"), True),
        (lambda root: (root / "kcg" / "new.py").write_text("imported by what is there"), True),
        (lambda root: (root / "evaluation" / "new.py").write_text(""), True),
        (lambda root: (root / "kcg" / "ignored.py").write_text(""), False),
        (lambda root: (root / "notes.txt").write_text("no code"), False),
        (lambda root: (root / "evaluation" / "results" / "a.json").write_text("what a run before wrote"), False),
        (lambda root: (root / "evaluation" / "results" / "b.json").write_text("what this run writes"), False),
    ],
    ids=[
        "code",
        "document",
        "deleted",
        "staged",
        "untracked module",
        "untracked script",
        "ignored",
        "untracked note",
        "result",
        "new result",
    ],
)
def test_dirty_is_any_tracked_change_but_results_and_any_untracked_code(
    checkout: Path, change: Any, dirty: bool
) -> None:
    change(checkout)
    assert of(checkout) == (git(checkout, "rev-parse", "HEAD"), dirty)


def test_without_a_repository_of_its_own_or_without_git_nothing_is_claimed(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = checkout / "env" / "site-packages" / "kcg"  # inside somebody's repository, which is not kcg's
    installed.mkdir(parents=True)
    shutil.copy(checkout / "kcg" / "provenance.py", installed)
    assert of(installed.parent) == (UNKNOWN, None)
    (alone := tmp_path / "alone" / "kcg").mkdir(parents=True)
    assert of(alone.parent) == (UNKNOWN, None)
    monkeypatch.setenv("PATH", "")
    assert of(checkout) == (UNKNOWN, None)


def test_a_commit_made_while_a_script_runs_is_not_taken_for_what_ran(checkout: Path) -> None:
    shutil.copytree(ROOT / "kcg", checkout / "kcg", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (checkout / "evaluation" / "script.py").write_text(
        "import subprocess, sys\n"
        "from pathlib import Path\n"
        "from kcg.cli import guarded, record_results\n"
        "def main():\n"
        "    subprocess.run(sys.argv[2:], check=True)\n"
        "    record_results(Path(sys.argv[1]), 'run', {}, {})\n"
        "guarded(main)\n"
    )
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", "the code that runs")
    first, out = git(checkout, "rev-parse", "HEAD"), checkout / "evaluation" / "results" / "new.json"
    later = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-q", "--allow-empty", "-m", "later")
    command = [sys.executable, str(checkout / "evaluation" / "script.py"), str(out), *later]
    done = subprocess.run(
        command,
        cwd=checkout,
        env={"PYTHONPATH": str(checkout), "PATH": "/usr/bin:/bin", "HOME": str(checkout)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert git(checkout, "rev-parse", "HEAD") != first
    entry = json.loads(out.read_text())["runs"]["run"]
    assert (entry["revision"], entry["dirty"]) == (first, False)


# -- what is stored


def figures(value: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every entry of a results file that says when it was made."""
    if isinstance(value, dict):
        if {"date", "created", "began"} & value.keys():
            yield place, value
        for key, inner in value.items():
            yield from figures(inner, f"{place}/{key}")
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from figures(inner, f"{place}/{i}")


def without_provenance(report: dict[str, Any]) -> list[str]:
    """Entries of `SINCE` or later that do not say which code made them; runs must say when they were made."""
    lacking = [run for run, entry in report.get("runs", {}).items() if not {"date", "created"} & entry.keys()]
    for place, entry in figures(report):
        made = str(entry.get("date") or entry.get("created") or entry.get("began"))
        if made >= SINCE and not {"revision", "dirty"} <= entry.keys():
            lacking.append(place)
    return lacking


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.name)
def test_every_figure_in_the_results_says_which_code_made_it(path: Path) -> None:
    report = json.loads(path.read_text())
    assert without_provenance(report) == []
    assert path.name in BEFORE or list(figures(report)), "a results file without a date"


def test_a_results_file_written_without_them_is_seen(tmp_path: Path) -> None:
    record_results(tmp_path / "a.json", "run", {"rows": {}}, {"x": 1})
    report = json.loads((tmp_path / "a.json").read_text())
    entry = report["runs"]["run"]
    assert {"revision": entry["revision"], "dirty": entry["dirty"]} == provenance()
    assert without_provenance(report) == []
    for missing in ("revision", "dirty", "date"):
        changed = {"runs": {"run": {k: v for k, v in entry.items() if k != missing}}}
        assert without_provenance(changed), missing


def test_rows_of_a_comparison_each_have_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from evaluation.rows import Rows

    rows = Rows(tmp_path / "a.json", "run")
    rows.add("first", {"s": 1.0})
    assert {key: rows.rows["first"][key] for key in provenance()} == provenance()
    assert without_provenance(json.loads((tmp_path / "a.json").read_text())) == []


def test_no_script_writes_json_results_on_its_own_without_them() -> None:
    """What does not go through `record_results` names `provenance` itself."""
    writers = []
    for path in [*(ROOT / "evaluation").rglob("*.py"), *(ROOT / "training").rglob("*.py")]:
        text = path.read_text()
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        writes = [
            c
            for c in calls
            if isinstance(c.func, ast.Attribute | ast.Name)
            and (c.func.attr if isinstance(c.func, ast.Attribute) else c.func.id) in ("write_text", "write_whole")
            and any(isinstance(n, ast.Attribute) and n.attr == "dumps" for a in c.args for n in ast.walk(a))
        ]
        if writes:
            writers.append(path.name)
            assert "provenance()" in text, f"{path} writes JSON without saying which code made it"
    assert {"faults_gpu.py", "fit_roofline.py"} <= set(writers)


def test_an_export_and_the_runs_in_it_say_it(tmp_path: Path) -> None:
    from pyarrow import parquet

    from kcg.search.replay import write_tables

    with Journal.open(tmp_path / "a.sqlite") as journal:
        export(journal, tmp_path / "out")
    write_tables([], tmp_path / "out" / "replay.parquet")
    for path in (tmp_path / "out").glob("*.parquet"):
        assert json.loads(parquet.read_schema(path).metadata[MADE_BY.encode()]) == provenance(), path.name


def test_checkpoints_of_before_say_no_more_than_they_know() -> None:
    from kcg.predictor.checkpoint import read as read_checkpoint
    from kcg.rl.policy import read_policy

    shipped = [
        *((p, read_checkpoint(p).about) for p in (ROOT / "kcg" / "predictor" / "checkpoints").glob("*.safetensors")),
        *((p, read_policy(p).about) for p in (ROOT / "kcg" / "rl" / "policies").glob("*.safetensors")),
    ]
    assert len(shipped) >= 3
    for path, about in shipped:
        assert about.revision or about.dirty is None, path


def test_what_a_checkout_says_is_asked_once_a_process() -> None:
    assert provenance() is provenance() and set(module.OUTPUTS) == {"evaluation/results"}
