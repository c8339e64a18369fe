"""The promise of `python -m kcg.optimize`: never slower, verified, resumable, and one clear line for bad input."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from tinygrad import Tensor

from kcg.cli import guarded
from kcg.dataset.job_use import busy, idle, uses
from kcg.dataset.journal import Journal
from kcg.errors import ExitCode, UsageError
from kcg.kernel.origins import origins_of
from kcg.measure.job_rows import HASH_DIGITS
from kcg.measure.protocol import PROTOCOL
from kcg.measure.service import Request
from kcg.optimize.__main__ import main, not_verified
from kcg.optimize.console import progress
from kcg.optimize.device import LEAST_COMPILE_S, Device
from kcg.optimize.live import read_live
from kcg.optimize.run import begin
from kcg.optimize.settings import Settings
from kcg.predictor.choice import SHIPPED
from kcg.provenance import provenance
from kcg.report.phases import MODEL, PHASES
from kcg.report.prediction_quality import expected_s
from kcg.report.result import read_result
from kcg.types import JobKind, JobOutcome, ModelCheck, Status
from kcg.ui.trials import BASELINE, Journaled
from kcg.workloads.capture import lazy_workload
from kcg.workloads.registry import find
from tests.optimize_run import begun, optimized
from tests.sample_result import sample_result
from tests.waiting import PATIENCE_S, wait_until

SCRIPT = Path(__file__).parents[1] / "scripts" / "two_layers.py"
SMALL = SCRIPT.with_name("one_layer.py")


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "kcg.optimize", *map(str, arguments)]


def run(*arguments: str | Path, timeout: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture(scope="module")
def optimised(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    folder = tmp_path_factory.mktemp("out")
    done = run(SCRIPT, "--budget", "3000s", "--measurements", "6", "--json", "--report", folder, "--", "8")
    return done, folder


def test_json_reports_verified_kernels_and_never_a_slower_total(
    optimised: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    done, folder = optimised
    assert done.returncode in (ExitCode.OK, ExitCode.NOTHING_IMPROVED), done.stderr
    answer = json.loads(done.stdout)
    assert answer["total_after_s"] <= answer["total_before_s"]
    assert 0 < answer["measurements"] <= 6
    assert [phase for phase, _ in answer["phases"]] == list(PHASES)
    assert sum(seconds for _, seconds in answer["phases"]) == pytest.approx(answer["search_s"])
    assert all(seconds > 0 for _, seconds in answer["phases"])
    assert answer["target"]["device"] == "CPU"
    assert answer["predictor"], "which one guided is said"
    assert 0 < len(answer["expectations"]) <= answer["compilations"], "of the search; baselines are not proposed"
    for seen in answer["expectations"]:
        assert seen["predicted_s"] > 0 and (seen["measured_s"] is not None) == (seen["status"] == "ok")
    for kernel in answer["kernels"]:
        assert kernel["verified"] or kernel["outcome"] in ("kept", "not searched"), "what is changed is verified"
        assert kernel["after_s"] <= kernel["before_s"]
        assert {"id", "name", "calls", "schedule"} <= set(kernel)
    _check_of_a_script(answer)
    stored = json.loads((folder / "RESULT.json").read_text())
    assert stored.pop("asts") and answer == stored, "the ASTs are in the file alone"


def test_what_was_expected_is_in_the_journal_beside_what_was_measured(
    optimised: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    """So it is seen while a run goes on."""
    result = read_result(optimised[1] / "RESULT.json")
    held = {(one.place, one.schedule): one for one in Journaled(optimised[1] / "journal.sqlite").look().trials}
    for seen in result.expectations:
        row = result.with_inside[seen.region]
        trial = held[(row.region.id, row.variables), seen.schedule]
        assert trial.expected_s == expected_s(seen) and (trial.measured_s is None) == (seen.measured_s is None)
    assert all(one.expected_s is None for one in held.values() if one.sampler == BASELINE), "these are not proposed"


def _check_of_a_script(answer: dict[str, Any]) -> None:
    """The script ran again where something was found, and left the same."""
    check = answer["model_check"]
    if any(kernel["outcome"] == "improved" for kernel in answer["kernels"]):
        compared = check["compared"]
        # once with the chosen schedules is enough where what it left agrees with what was recorded
        assert check["passed"] is True and check["runs"] >= (1 if "as recorded" in compared else 2), check
        assert "returned by its last TinyJit step" in compared
    else:
        assert (check["passed"], check["reason"]) == (None, "not run: no schedule was changed")


def test_the_script_ran_unchanged_and_its_replays_are_counted(
    optimised: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    done, folder = optimised
    assert "sum 48.000" in done.stderr  # what the script prints does not mix with the JSON
    calls = sorted(r.calls for r in read_result(folder / "RESULT.json").regions)
    assert calls[-1] >= 4, "each of the four runs of the jitted function counts"


def test_the_report_is_beside_the_result(optimised: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    _, folder = optimised
    assert "two_layers" in (folder / "report.html").read_text()


def test_who_watched_the_run_saw_how_it_ended_and_all_of_its_curve(
    optimised: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    done, folder = optimised
    seen, result = read_live(folder / "live.json"), read_result(folder / "RESULT.json")
    assert (seen.workload, seen.budget, seen.exit_code) == (result.workload, result.budget, done.returncode)
    assert (seen.phase, seen.points) == (MODEL, result.progress)


def test_a_run_says_which_code_made_it_in_its_result_and_its_journal(
    optimised: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    result = read_result(optimised[1] / "RESULT.json")
    assert {"revision": result.revision, "dirty": result.dirty} == provenance()
    with Journal.open(optimised[1] / "journal.sqlite", read_only=True) as journal:
        (run,) = journal.runs().values()
    assert {key: run.description[key] for key in provenance()} == provenance()


def test_the_jobs_of_a_run_are_all_that_it_did(
    optimised: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    result = read_result(optimised[1] / "RESULT.json")
    with Journal.open(optimised[1] / "journal.sqlite", read_only=True) as journal:
        jobs, rows = journal.jobs(), list(journal.measurements(PROTOCOL))
        (use,) = uses(jobs, journal.runs())
        (run_id,) = journal.runs()
    assert {job.run_id for job in jobs} == {run_id}

    of = {kind: [job for job in jobs if job.kind == kind] for kind in JobKind}
    compiled = {(job.subject, job.schedule, *job.binaries) for job in of[JobKind.COMPILE]}
    for row in rows:  # one that did not compile has no binary
        binary = [row.binary_hash[:HASH_DIGITS]] * bool(row.binary_hash)
        assert (row.region_id, row.schedule.id[:HASH_DIGITS], *binary) in compiled
    searched = [row for row in rows if row.sampler != "final" and row.binary_hash]
    assert len(of[JobKind.TIME]) == len(searched), "one each, also where it was taken over from the same binary"
    timed = [job for job in of[JobKind.TIME] if job.outcome != JobOutcome.TAKEN_OVER]
    assert len(timed) == result.measurements
    by_binary = {(row.region_id, (row.binary_hash[:HASH_DIGITS],)): row for row in searched}
    assert {(job.subject, job.binaries) for job in timed} == set(by_binary)
    own = {row.region_id: row.median_s for row in rows if row.sampler == "hand-coded"}
    lowered = {job.subject for job in of[JobKind.COMPILE] if job.outcome == JobOutcome.TAKEN_OVER}
    assert own.keys() <= lowered, "by the script's own process, while its kernels were recorded"
    for job in timed:
        row = by_binary[job.subject, job.binaries]
        if row.status == Status.OK:
            assert job.sampled_s == pytest.approx(sum(row.samples_s)), "the device's own time"
            assert job.saving_s == own[row.region_id] - row.median_s
    judged = {row.region_id for row in rows if row.sampler == "final"}
    assert judged == {job.subject for kind in (JobKind.PAIRED, JobKind.JOINT) for job in of[kind]}
    assert judged == {row.region.id for row in result.regions if row.chosen.verification.passed}
    assert len(of[JobKind.CAPTURE]) == len(of[JobKind.PREDICTOR]) == len(of[JobKind.RUN]) == 1
    ran = result.model_check is not None and result.model_check.passed is not None
    assert len(of[JobKind.STEP]) >= ran and of[JobKind.PROCESSES]

    on_device = sorted((job for job in jobs if job.resource == "device:0"), key=lambda job: job.start_s)
    for before, after in itertools.pairwise(on_device):
        assert before.start_s + before.seconds <= after.start_s, f"{before} while {after}"
    assert use.ended and use.seconds >= result.search_s
    for resource in use.resources:
        of_it = [job for job in jobs if job.resource == resource.resource and job.kind != JobKind.RUN]
        ends = sorted([*busy(of_it), *idle(of_it, use.seconds)])
        assert [begin for begin, _ in ends] == [0.0, *(end for _, end in ends[:-1])], "neither gap nor overlap"
        assert ends[-1][1] == use.seconds
        assert resource.busy_s + resource.idle_s == pytest.approx(resource.count * use.seconds)
        assert sum(kind.jobs + kind.taken_over for kind in resource.kinds) == len(of_it)
    order = [job.start_s for kind in (JobKind.CAPTURE, JobKind.TIME, JobKind.PAIRED) for job in of[kind][:1]]
    assert order == sorted(order)


@pytest.mark.slow
def test_nothing_is_measured_with_zero_measurements_but_the_choice_is_verified(tmp_path: Path) -> None:
    learned = SHIPPED / "cuda.safetensors"  # of another kind of device: it guides, and is not sure
    done = run(
        SMALL,
        "--budget",
        "3000s",
        "--measurements",
        "0",
        "--predictor",
        learned,
        "--json",
        "--report",
        tmp_path,
        "--",
        "16",
    )
    assert done.returncode in (ExitCode.OK, ExitCode.NOTHING_IMPROVED), done.stderr
    answer = json.loads(done.stdout)
    assert answer["measurements"] == 0 and answer["predictor"] == "h200-workload"
    assert all(k["verified"] for k in answer["kernels"])
    assert answer["total_after_s"] <= answer["total_before_s"]


def _rows(journal: Path, *, finals: bool = False) -> list[tuple[Any, ...]]:
    if not journal.exists():
        return []
    connection = sqlite3.connect(f"file:{journal}?mode=ro", uri=True, timeout=PATIENCE_S)
    try:
        return connection.execute(  # finals are timed again on purpose
            "SELECT region_id, schedule_body, binary_hash, samples_s, run_id FROM measurements "
            f"WHERE {'sampler = ' if finals else 'sampler != '} 'final'"
        ).fetchall()
    except sqlite3.OperationalError:
        return []  # the tables are not there yet
    finally:
        connection.close()


def _wait_for_rows(journal: Path, count: int, process: subprocess.Popen[str]) -> None:
    assert wait_until(lambda: len(_rows(journal)) >= count or process.poll() is not None)
    assert process.poll() is None, process.communicate()[1]


def test_kill_9_in_the_middle_then_resume_measures_nothing_twice(tmp_path: Path) -> None:
    arguments = (SMALL, "--predictor", "roofline", "--budget", "3000s", "--measurements", "5", "--report", tmp_path)
    arguments = (*arguments, "--no-script-check")
    process = subprocess.Popen(
        command(*arguments, "--", "8"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    journal = tmp_path / "journal.sqlite"
    _wait_for_rows(journal, 3, process)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
    assert not alive, "no child survives its parent"
    before = _rows(journal)
    done = optimized(*arguments, "--resume", "--json", "--asts", "--", "8")
    assert done.returncode in (ExitCode.UNCHECKED, ExitCode.NOTHING_IMPROVED), done.stderr
    assert json.loads(done.stdout) == json.loads((tmp_path / "RESULT.json").read_text())
    after = _rows(journal)
    assert after[: len(before)] == before, "nothing acknowledged is lost"
    schedules = [(row[0], row[1]) for row in after]
    assert len(set(schedules)) == len(schedules), "no schedule is measured twice"
    timings: dict[tuple[str, str], set[str]] = {}
    for region, _, binary, samples, _ in after:
        if binary:
            timings.setdefault((region, binary), set()).add(samples)
    assert all(len(found) == 1 for found in timings.values()), "no binary is timed twice"
    with Journal.open(journal, read_only=True) as reopened:
        jobs, killed, resumed = reopened.jobs(), *uses(reopened.jobs(), reopened.runs())
    assert (killed.run_id, killed.ended, resumed.ended) == (before[0][-1], False, True)
    of_search = [job for job in jobs if job.kind == JobKind.TIME]
    timed = {(job.run_id, job.subject, *job.binaries) for job in of_search}
    assert {(row[-1], row[0], row[2][:HASH_DIGITS]) for row in before} <= timed, "each with what took its time"
    assert all(job.saving_s is not None for job in of_search if job.outcome == JobOutcome.OK), "also once resumed"
    kept = _rows(journal, finals=True)
    judged = [kernel for kernel in json.loads(done.stdout)["kernels"] if kernel["verified"]]
    assert len(kept) >= 3 * len(judged), "each baseline that is judged as A and as B, cold, and once warm"
    assert json.loads(done.stdout)["measurements"] == len(timings)


@pytest.mark.slow
@pytest.mark.parametrize(
    "signals",
    [
        pytest.param([signal.SIGINT], id="Ctrl-C"),
        pytest.param([signal.SIGTERM, signal.SIGTERM], id="timeout", marks=pytest.mark.slow),
    ],
)
def test_who_is_interrupted_writes_the_best_so_far_and_says_how_to_resume(
    tmp_path: Path, signals: list[signal.Signals]
) -> None:
    """`timeout` sends SIGTERM to its child, and then to the group."""
    arguments = (SMALL, "--predictor", "roofline", "--budget", "3000s", "--report", tmp_path)
    process = subprocess.Popen(
        command(*arguments, "--", "8"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    _wait_for_rows(tmp_path / "journal.sqlite", 2, process)
    children = psutil.Process(process.pid).children(recursive=True)
    for number in signals:
        os.killpg(process.pid, number)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == ExitCode.INTERRUPTED, err
    assert "Traceback" not in err
    assert "--resume" in err
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
    assert not alive
    assert err.rstrip().endswith(f"--report {tmp_path} --resume -- 8"), err
    result = read_result(tmp_path / "RESULT.json")
    assert not result.complete
    assert (tmp_path / "report.html").exists()
    assert not any(r.chosen.verification.passed for r in result.regions), "what was not verified is not called so"


@pytest.mark.slow
def test_a_signal_to_end_ends_as_on_ctrl_c(tmp_path: Path) -> None:
    """SIGTERM is what `timeout`, a container's end and a batch system send."""
    script, temporary = tmp_path / "waits.py", tmp_path / "tmp"
    script.write_text("import time\nprint('waiting', flush=True)\ntime.sleep(36000)\n")
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    arguments = command(script, "--report", tmp_path / "out")
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    assert any(line == "waiting\n" for line in process.stderr)
    children = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    printed = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == ExitCode.INTERRUPTED, printed
    assert printed.startswith("kcg: interrupted") and "Traceback" not in printed
    assert children and not psutil.wait_procs(children, timeout=PATIENCE_S)[1] and not list(temporary.iterdir())


@pytest.mark.slow
def test_an_earlier_journal_is_kept_and_a_budget_too_small_to_search_is_reported(tmp_path: Path) -> None:
    old = tmp_path / "journal.sqlite"
    old.write_bytes(b"something precious")
    (tmp_path / "RESULT.json").write_bytes(b"what it found")
    done = run(SMALL, "--budget", "1s", "--report", tmp_path, "--quiet", "--", "16")
    assert done.returncode == ExitCode.NOTHING_SEARCHED, done.stderr
    result = read_result(tmp_path / "RESULT.json")
    assert not result.complete and any(w.startswith("nothing was searched") for w in result.warnings)
    kept = list(tmp_path.glob("journal-*.sqlite"))
    assert [p.read_bytes() for p in kept] == [b"something precious"]
    assert [p.read_bytes() for p in tmp_path.glob("RESULT-*.json")] == [b"what it found"]


def test_what_another_workload_left_is_not_gone_on_with(tmp_path: Path) -> None:
    def opened(name: str, output: Tensor, *, resume: bool) -> None:
        settings = Settings(name, device="CPU", folder=tmp_path, resume=resume)
        with progress(quiet=True) as shown:
            log, budget = begin(settings, shown, started=0.0)
            with Device(settings, log, budget) as device:
                device.open_journal(lazy_workload(name, "", output))

    opened("softmax", Tensor.empty(8, 16) + 1, resume=False)
    before = (tmp_path / "journal.sqlite").read_bytes()
    with pytest.raises(UsageError, match=r"holds another workload, .* leave out --resume to set it aside"):
        opened("rope", Tensor.empty(8, 16).exp(), resume=True)
    assert (tmp_path / "journal.sqlite").read_bytes() == before


def test_the_journal_names_the_layers_from_the_start(tmp_path: Path) -> None:
    """So who watches a run knows them before there is a result."""
    spec, preset = find("rope", "mini", "CPU")
    with progress(quiet=True) as shown:
        settings = Settings("rope", preset, device="CPU", folder=tmp_path)
        log, budget = begin(settings, shown, started=0.0)
        with Device(settings, log, budget) as device:
            workload = spec.capture(preset)
            journal = device.open_journal(workload)
            origins = {call.region.id: call.origin for call in journal.workloads()[0].calls}
    known = origins_of(workload)
    assert origins == {call.region.id: known[call.region.id][0][0] for call in workload.calls}
    assert "table0" in origins.values()


def test_compilers_on_a_cpu_end_with_the_time_of_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Request] = []
    with begun(Settings("rope", "mini", device="CPU", folder=tmp_path)) as begin:
        monkeypatch.setattr(
            begin.device.spread, "measure", lambda some, **_: asked.extend(some) or [Future()] * len(some)
        )
        schedule = begin.works[0].space.baseline()
        for left_s in (1e6, 10.0, -1.0):
            begin.budget.search_until(time.monotonic() + left_s)
            begin.device.measure(begin.works[0], [schedule])
        begin.device.measure_baselines(begin.works[:1])
    compile_s = [one.compile_s for one in asked]
    assert compile_s[0] is compile_s[3] is None, "the service's own, and always for tinygrad's own schedules"
    assert compile_s[1] is not None and LEAST_COMPILE_S < compile_s[1] <= 10 and compile_s[2] == LEAST_COMPILE_S


def test_dry_run_measures_and_writes_nothing(tmp_path: Path) -> None:
    done = optimized(SMALL, "--device", "CPU", "--dry-run", "--json", "--report", tmp_path / "none", "--", "6")
    assert done.returncode == ExitCode.OK, done.stderr
    plan = json.loads(done.stdout)
    assert len(plan["kernels"]) == 1 and plan["kernels"][0]["calls"] == 4
    assert not (tmp_path / "none").exists()


RAISING = "raise ValueError('boom')\n"
SCHNELL = "black-forest-labs/FLUX.1-schnell"  # kcg's workload is dev


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (
            ["flux", "--predictor", "ruffline"],
            ExitCode.USAGE,
            "--predictor ruffline: write auto, roofline, or the path",
        ),
        (["fluxx"], ExitCode.USAGE, "unknown workload 'fluxx': did you mean flux? There are "),
        (["flux", "--preset", "huge"], ExitCode.USAGE, "unknown preset"),
        (["flux", "--search", "magic"], ExitCode.USAGE, "unknown search strategy 'magic'"),
        (["flux", "--search", "policy"], ExitCode.USAGE, "unknown search strategy 'policy'"),
        (["flux", "--search", "tile=ppo"], ExitCode.USAGE, "--search tile=ppo: ppo is for Opts alone; for tile there"),
        (["flux", "--budget", "0"], ExitCode.USAGE, "not a positive time"),
        (["flux", "--budget", "soon"], ExitCode.USAGE, "not a positive time"),
        (["flux", "--budget", "1e400"], ExitCode.USAGE, "more than a year"),
        (["flux", "--search", "tinygrad-beam:0"], ExitCode.USAGE, "write a width"),
        (["flux", "--measurements", "-1"], ExitCode.USAGE, "negative"),
        (["flux", "--device", "TPU"], ExitCode.DEVICE_UNUSABLE, "unknown device"),
        (["flux", "--device", "CUDA"], ExitCode.DEVICE_UNUSABLE, "no GPU"),
        (["flux", "--report", "/proc/kcg-cannot-write-here"], ExitCode.USAGE, "cannot write to"),
        (["flux", "--report", ""], ExitCode.USAGE, "--report has no name"),
        (["flux", "--dry-run", "--report", "truncated.json/within"], ExitCode.USAGE, "cannot write to truncated.json"),
        (["flux", "--dry-run", "--fleet", "gpus"], ExitCode.USAGE, "'gpus' is no address of a scheduler"),
        (["flux", "--dry-run", "--store", "truncated.json"], ExitCode.USAGE, "truncated.json is no store of kcg"),
        (["flux", "--dry-run", "--store", "hf://a/b"], ExitCode.USAGE, "hf://a/b is no pinned store"),
        (["flux", "--predictor", "raising.py"], ExitCode.USAGE, "raising.py cannot be read"),
        (["apply", "truncated.json", "--undo"], ExitCode.USAGE, "leave out truncated.json"),
        (["missing.py"], ExitCode.USAGE, "there is no script missing.py"),
        (["raising.py", "--preset", "768"], ExitCode.USAGE, "--preset 768: a script has none"),
        (["flux", "--weights", "absent.safetensors"], ExitCode.USAGE, "no weights at absent.safetensors: give a"),
        (["flux", "--preset", "1024", "--weights", SCHNELL], ExitCode.USAGE, "it holds those of schnell; 4 missing"),
        (["flux", "--preset", "mini", "--weights", SCHNELL], ExitCode.USAGE, "those of schnell, preset 768 or 1024"),
        (["gpt2", "--weights", "a.safetensors"], ExitCode.USAGE, "kcg knows of no published weights of gpt2"),
        (["flux", "--no-script-check"], ExitCode.USAGE, "--no-script-check is for scripts; flux is not a .py file"),
        (["raising.py", "--weights", "a.safetensors"], ExitCode.USAGE, "a script brings its own"),
        (["flux", "--no-such-option"], ExitCode.USAGE, "--no-such-option"),
        (["apply", "truncated.json"], ExitCode.USAGE, "truncated.json"),
        (["apply", "absent.json"], ExitCode.USAGE, "absent.json"),
    ],
)
def test_what_is_refused_before_anything_starts_is_one_line_and_an_exit_code(
    arguments: list[str],
    code: ExitCode,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("truncated.json").write_text('{"schema": 1, "total_before')
    Path("raising.py").write_text(RAISING)
    monkeypatch.setattr(sys, "argv", ["kcg.optimize", *arguments])
    with pytest.raises(SystemExit) as ended:
        guarded(main)
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (code, "")
    assert [line for line in printed.err.splitlines() if line.startswith("kcg: ")] == [printed.err.splitlines()[-1]]
    assert says in printed.err and not list(tmp_path.rglob("RESULT.json"))


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["raising.py"], ExitCode.USAGE, "raising.py, line 1), before it ran a tinygrad kernel"),
        pytest.param(["exits.py"], ExitCode.USAGE, "exit code 3", marks=pytest.mark.slow),
        pytest.param(["idle.py"], ExitCode.USAGE, "ran no tinygrad kernel", marks=pytest.mark.slow),
    ],
)
def test_bad_input_is_one_line_and_an_exit_code(
    arguments: list[str], code: ExitCode, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("raising.py").write_text(RAISING)
    Path("exits.py").write_text("import sys; sys.exit(3)\n")
    Path("idle.py").write_text("x = 1\n")
    done = optimized(*arguments)
    assert done.returncode == code, done.stderr
    complaints = [line for line in done.stderr.splitlines() if line.startswith("kcg: ")]
    assert len(complaints) == 1 and says in complaints[0], done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not list(tmp_path.rglob("RESULT.json"))


def test_a_failed_verification_is_explained_in_one_line() -> None:
    sample = sample_result()
    wrong = [region for region in sample.regions if region.chosen.verification.wrong]
    line = not_verified(replace(sample, model_check=None))
    assert line.startswith(f"{len(wrong)} of {len(sample.regions)} kernels are wrong with tinygrad's own schedule")
    assert line.endswith(f"{wrong[0].baseline.name}: {wrong[0].note}")
    wrong = not_verified(replace(sample, model_check=ModelCheck(False, "error 0.3 of a tolerated 0.1")))
    assert wrong == "the whole model is wrong with these schedules, do not use them: error 0.3 of a tolerated 0.1"


@pytest.mark.slow
def test_resuming_from_a_corrupt_journal_is_refused_and_it_is_kept(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite").write_bytes(b"SQLite format 3\x00" + b"garbage" * 500)
    before = (tmp_path / "journal.sqlite").read_bytes()
    done = optimized(SMALL, "--resume", "--report", tmp_path, "--budget", "20s", "--", "16")
    assert done.returncode == ExitCode.USAGE, done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "journal.sqlite").read_bytes() == before


@pytest.mark.slow
def test_a_recomputed_matmul_is_named_with_the_factor_and_what_to_do() -> None:
    done = run(SCRIPT.with_name("naive_attention.py"), "--dry-run", "--device", "CPU")
    assert done.returncode == ExitCode.OK, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("recomputes ")]
    assert line.startswith("recomputes 3.0 times: ") and ".contiguous()" in line and "24x32" in line
