"""The promise of `python -m kcg.dataset`: real measurements, resumable, and records of any script."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from kcg.dataset.__main__ import main
from kcg.dataset.export import read_export
from kcg.dataset.journal import Journal
from kcg.errors import ExitCode
from kcg.measure.protocol import PROTOCOL
from tests.commands import ended, python

SCRIPT = Path(__file__).parents[1] / "scripts" / "two_layers.py"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return python("-m", "kcg.dataset", *arguments)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data") / "small.sqlite"
    arguments = ("generate", "--workloads", "rope", "--preset", "mini", "--device", "CPU", "--out", out)
    first = run(*arguments, "--schedules-per-kernel", "2", "--budget", "3000s")
    assert first.returncode == ExitCode.OK, first.stderr
    assert "complete" in first.stdout
    again = ended(main, *arguments, "--schedules-per-kernel", "2", "--budget", "3000s")
    assert "0 schedules measured" in again.stdout, "what is known is not measured again"
    more = ended(main, *arguments, "--schedules-per-kernel", "60", "--budget", "0.01s")
    assert "budget reached" in more.stdout and more.returncode == ExitCode.NOTHING_SEARCHED, more.stderr
    assert "give a larger --budget" in more.stderr
    return out


def test_generate_measures_every_kernel_for_real_and_resumes(generated: Path) -> None:
    with Journal.open(generated, create=False) as journal:
        rows = list(journal.measurements(PROTOCOL))
        kernels = journal.kernels()
    assert {r.region_id for r in rows} == set(kernels)
    assert {r.sampler for r in rows} >= {"hand-coded", "raw"}
    assert all(r.checked for r in rows if r.status == "ok")
    identities = [(r.key, r.trial) for r in rows]
    assert len(set(identities)) == len(identities)


def test_stats_and_export_work_on_what_was_generated(generated: Path, tmp_path: Path) -> None:
    report = json.loads(ended(main, "stats", generated, "--json").stdout)
    done = ended(main, "export", generated, tmp_path / "export")
    assert done.returncode == ExitCode.OK, done.stderr
    exported = read_export(tmp_path / "export")
    assert len(list(exported.measurements(PROTOCOL))) == report["rows"]
    assert json.loads(ended(main, "stats", tmp_path / "export", "--json").stdout)["rows"] == report["rows"]
    assert ended(main, "export", generated, tmp_path / "export").returncode == ExitCode.USAGE, "nothing is overwritten"


@pytest.mark.slow
def test_capture_counts_executions_of_an_unchanged_script(tmp_path: Path) -> None:
    done = run("capture", "--out", tmp_path / "c.sqlite", "--device", "CPU", "--", SCRIPT, "8")
    assert done.returncode == ExitCode.OK, done.stderr
    assert "sum 48.000" in done.stderr
    with Journal.open(tmp_path / "c.sqlite", create=False) as journal:
        (workload,) = journal.workloads()
    assert workload.name == "script:two_layers" and workload.preset == "8"
    assert max(c.calls for c in workload.calls) >= 4


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["generate", "--workloads", "nope", "--out", "x.sqlite"], "unknown workload"),
        (["generate", "--workloads", ",", "--out", "x.sqlite"], "empty"),
        (
            ["generate", "--workloads", "rope/mini,wl.py", "--out", "x.sqlite"],
            "wl.py is a program, no workload: python -m kcg.dataset capture -- wl.py records its kernels, and "
            "python -m kcg.dataset generate --from captured.sqlite --out x.sqlite measures them",
        ),
        (["capture", "--workloads", "wl.py"], "python -m kcg.dataset capture -- wl.py records its kernels"),
        (["generate", "--workloads", "flux", "--out", "x.sqlite", "--budget", "-5"], "not a positive time"),
        (["generate", "--workloads", "flux", "--out", "x.sqlite", "--schedules-per-kernel", "0"], "at least 1"),
        (["generate", "--workloads", "flux", "--out", "text.sqlite", "--budget", "5s"], "text.sqlite"),
        (["stats", "absent.sqlite"], "absent.sqlite"),
        (["stats", "text.sqlite"], "text.sqlite"),
        (["export", "text.sqlite", "out"], "text.sqlite"),
        (["capture", "--", "absent.py"], "absent.py"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.sqlite").write_text("this is not a journal\n" * 100)
    done = ended(main, *arguments)
    assert done.returncode == ExitCode.USAGE, done.stderr
    complaints = [line for line in done.stderr.splitlines() if line.startswith("kcg: ")]
    assert len(complaints) == 1 and says in complaints[0], done.stderr
    assert "Traceback" not in done.stderr
    assert Path("text.sqlite").read_text().startswith("this is not a journal")
    assert not Path("x.sqlite").exists()
