"""The promise of `capture`: the kernels of whatever script a tinygrad user has, counted, and a line for what is not."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from kcg.compat.capture import CapturedCall
from kcg.compat.tiny import Ops, UOp
from kcg.dataset.journal import Journal
from kcg.errors import CodecError, ExitCode, ScriptError
from kcg.kernel.codec import ast_of
from kcg.kernel.space import KernelSpace
from kcg.kernel.symbolic import ends_of
from kcg.measure.inputs import buffers_of
from kcg.measure.protocol import PROTOCOL
from kcg.types import RAW, Target, Workload
from kcg.workloads.capture import to_workload
from kcg.workloads.script import NAME_LENGTH, bounded, capture_script

SCRIPTS = Path(__file__).parent / "scripts"
STEPS, POSITIONS = 4, 12
DEV = os.environ["DEV"]
X86 = Target(
    device="CPU", renderer="X86", arch="x86_64,native", model="test", cores=2, has_local=False, has_threads=True,
    max_threads=2, shared_bytes=0, memory_bytes=1 << 33, cache_bytes=1 << 24,
)  # fmt: skip


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "kcg.dataset", *map(str, arguments)]


def run(*arguments: str | Path, stdin: str = "", **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=120, check=False, input=stdin,
        env={**os.environ, **settings},
    )  # fmt: skip


def lines_of_kcg(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("kcg: ")]


def executions_printed(text: str) -> int:
    """How many kernels tinygrad says it ran, with DEBUG=2; of a copy it prints where it comes from."""
    return sum("*** CPU" in line and "<-" not in line for line in text.splitlines())


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Workload], dict[str, str]]:
    """Three scripts recorded into one journal: its path, its workloads, and what was printed."""
    out, said = tmp_path_factory.mktemp("captured") / "all.sqlite", {}
    for script, arguments, settings in (
        ("train_loop", ["--steps", str(STEPS)], {"DEBUG": "2"}),
        ("decode_loop", [str(POSITIONS)], {}),
        ("sharded", [], {}),
    ):
        done = run("capture", "--out", out, "--", SCRIPTS / f"{script}.py", *arguments, **settings)
        assert done.returncode == ExitCode.OK, done.stderr
        assert "Traceback" not in done.stderr
        said[script] = done.stderr
    with Journal.open(out, create=False) as journal:
        workloads = {w.name: w for w in journal.workloads()}
    return out, workloads, said


def test_captures_accumulate_under_names_of_their_own(
    captured: tuple[Path, dict[str, Workload], dict[str, str]],
) -> None:
    presets = {name: w.preset for name, w in captured[1].items()}
    assert presets == {
        "script:train_loop": f"--steps {STEPS}",
        "script:decode_loop": str(POSITIONS),
        "script:sharded": "",
    }


def test_a_training_loop_has_every_execution_that_tinygrad_prints(
    captured: tuple[Path, dict[str, Workload], dict[str, str]],
) -> None:
    workload, said = captured[1]["script:train_loop"], captured[2]["train_loop"]
    executions = executions_printed(said)
    assert executions > 50 and "loss " in said
    assert sum(c.calls for c in workload.calls) == executions, "replays too"
    asts = {c.region.id: ast_of(c.region.kernel) for c in workload.calls}
    in_place = [c for c in workload.calls if any(b.is_input and b.is_output for b in buffers_of(asts[c.region.id]))]
    assert any(c.calls >= STEPS - 1 for c in in_place), "the optimiser's kernels"
    generators = [c for c in workload.calls if any(u.op is Ops.THREEFRY for u in asts[c.region.id].toposort())]
    assert sum(c.calls for c in generators) >= 2 * STEPS, "the random numbers of batches and dropout"


def test_a_kernel_of_a_decode_loop_is_one_call_that_knows_every_position_and_replay(
    captured: tuple[Path, dict[str, Workload], dict[str, str]],
) -> None:
    symbolic = [call for call in captured[1]["script:decode_loop"].calls if call.variables]
    assert len(symbolic) > 3 and len({call.region.id for call in symbolic}) == len(symbolic)
    for call in symbolic:
        assert call.seen == tuple(((("start_pos", i),), 1) for i in range(1, POSITIONS + 1)), "replays of TinyJit too"
        assert call.variables == (("start_pos", POSITIONS),) and call.calls == POSITIONS
        low, high = ends_of(call)
        assert (low.variables, high.variables) == ((("start_pos", 1),), (("start_pos", POSITIONS),))
        assert low.share == pytest.approx(0.5) and high.share == pytest.approx(0.5)
    assert "values of their variables" not in captured[2]["decode_loop"], "nothing is left out"


def test_replays_of_a_graph_are_counted_by_its_kernels(
    captured: tuple[Path, dict[str, Workload], dict[str, str]],
) -> None:
    plain = captured[1]["script:decode_loop"]
    graphed = capture_script(SCRIPTS / "decode_loop.py", (str(POSITIONS),), dev="NULL")
    assert Counter({c.variables: c.calls for c in graphed.calls if c.variables}) == Counter(
        {c.variables: c.calls for c in plain.calls if c.variables}
    )
    assert max(c.calls for c in graphed.calls) == POSITIONS


def test_a_kernel_of_sharded_tensors_is_one_that_a_single_device_can_run(
    captured: tuple[Path, dict[str, Workload], dict[str, str]],
) -> None:
    calls = captured[1]["script:sharded"].calls
    on_a_device = [c for c in calls if dict(c.variables) == {"_device_num": 0}]
    assert on_a_device and all(c.calls % 2 == 0 for c in on_a_device), "each of the two devices runs it"
    for call in calls:
        space = KernelSpace(call.region, X86)
        assert space.actions(RAW) is not None and space.baseline() is not None


@pytest.mark.slow
def test_what_was_captured_is_measured(
    captured: tuple[Path, dict[str, Workload], dict[str, str]], tmp_path: Path
) -> None:
    done = run(
        "generate", "--from", captured[0], "--out", tmp_path / "d.sqlite", "--schedules-per-kernel", "1",
        "--kernels-per-family", "3", "--budget", "120s",
    )  # fmt: skip
    assert done.returncode == ExitCode.OK and "complete" in done.stdout, done.stderr
    with Journal.open(tmp_path / "d.sqlite", create=False) as journal:
        rows = list(journal.measurements(PROTOCOL))
        assert set(journal.first_seen().values()) >= {f"script:train_loop/--steps {STEPS}"}
    assert len(rows) >= 9 and all(r.status == "ok" and r.checked for r in rows)
    assert any(r.variables for r in rows)


def test_a_script_that_sets_tinygrad_up_runs_as_it_would_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CACHEDB", str(tmp_path / "users.db"))
    workload = capture_script(SCRIPTS / "own_settings.py", dev=DEV)
    said = capfd.readouterr().err
    assert "HALF BEAM=2 PARALLEL=2 dtypes.half" in said, "what it sets before it imports tinygrad counts"
    executions = executions_printed(said)
    assert sum(c.calls for c in workload.calls) == executions == 5, "those of PARALLEL's processes too"
    assert any('"float16"' in c.region.kernel.ast_json for c in workload.calls)
    assert not any(tmp_path.iterdir()), "the user's cache is left alone"


def test_hand_written_and_refused_kernels_are_counted_and_the_others_kept(
    capfd: pytest.CaptureFixture[str],
) -> None:
    workload = capture_script(SCRIPTS / "hand_written.py", dev=DEV)
    assert lines_of_kcg(capfd.readouterr().err) == [
        "kcg: 3 executions of hand-written kernels are left out",
        "kcg: 1 execution of 1 kernel is left out: AST node 3: axis type 'GLOBAL' is not allowed",
    ]
    assert len(workload.calls) == 2


def test_processes_that_a_script_starts_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    workload = capture_script(SCRIPTS / "processes.py", dev=DEV)
    said = capfd.readouterr().err
    assert "[9, 16]" in said and "sum 85.0" in said
    assert lines_of_kcg(said) == ["kcg: 2 processes that the script started: what runs there is not recorded"]
    assert sum(c.calls for c in workload.calls) == 1


def test_arguments_input_output_and_neighbours_are_the_scripts_own(tmp_path: Path) -> None:
    done = run("capture", "--out", tmp_path / "c.sqlite", "--", SCRIPTS / "any_ending.py", "lines", stdin="3\n4\n")
    assert done.returncode == ExitCode.OK, done.stderr[:1000]
    assert "first 256.0" in done.stderr and "read 7" in done.stderr
    assert done.stderr.count("much to say") == 20_000 and "much to say" not in done.stdout


@pytest.mark.parametrize(("how", "kernels"), [("exit", 2), ("leave", 2), ("later", 4)])
def test_nothing_is_lost_however_a_script_ends_well(how: str, kernels: int, capfd: pytest.CaptureFixture[str]) -> None:
    workload = capture_script(SCRIPTS / "any_ending.py", (how,), dev=DEV)
    assert len(workload.calls) == kernels
    assert lines_of_kcg(capfd.readouterr().err) == []


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("exit-3", "ended with exit code 3; run it alone first"),
        ("exit-text", "ended with 'no data here'; run it alone first"),
        ("leave-4", "ended with exit code 4; run it alone first"),
        ("raise", "raised RuntimeError: the loss is (line 44); run it alone first"),
        ("killed", "was killed by SIGKILL, and its kernels are not recorded; run it alone first"),
        ("replaced", "replaced its process or ended it without Python (exit code 0), and its kernels are not recorded"),
        ("exit", "ran no tinygrad kernel that can be recorded: does it realise its tensors?"),
    ],
)
def test_a_script_that_fails_is_one_line(how: str, says: str, capfd: pytest.CaptureFixture[str]) -> None:
    script = SCRIPTS / "any_ending.py"
    with pytest.raises(ScriptError, match=re.escape(f"{script} {says}")):
        capture_script(script, (how, "--idle"), dev=DEV)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("how", ["wait", "save"])
def test_ctrl_c_ends_a_capture_without_a_traceback(how: str, tmp_path: Path) -> None:
    arguments = ("capture", "--out", tmp_path / "c.sqlite", "--", SCRIPTS / "any_ending.py", how, "--idle")
    with subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        said = list(iter(process.stderr.readline, "waiting\n"))
        os.killpg(process.pid, signal.SIGINT)
        said += process.communicate(timeout=30)[1].splitlines()
    assert process.returncode == ExitCode.INTERRUPTED
    assert said[-1] == f"kcg: interrupted: what {SCRIPTS / 'any_ending.py'} ran is not recorded"
    assert ("saved" in said) == (how == "save")
    assert not any("Traceback" in line for line in said)
    assert not (tmp_path / "c.sqlite").exists()


def test_a_name_is_one_bounded_line() -> None:
    assert bounded("--lr 0.1") == "--lr 0.1"
    odd = [bounded(text) for text in ("a\nb", "a b" * 99, "a b" * 100, "\udcff", "x" * NAME_LENGTH)]
    assert len(set(odd)) == len(odd)
    for name in odd:
        assert len(name) <= NAME_LENGTH and name.isprintable() and name.encode()


def test_a_kernel_that_the_codec_refuses_fails_only_where_it_must() -> None:
    custom = UOp.sink(UOp(Ops.CUSTOM, arg="anything();"))
    calls = [CapturedCall(custom, (), 3, "CPU"), CapturedCall(custom, (), 2, "CPU:1")]
    with pytest.raises(CodecError):
        to_workload("w", "", calls)
    refused: dict[str, Counter[str]] = {}
    assert to_workload("w", "", calls, refused=refused).calls == ()
    assert [(list(counts.values())) for counts in refused.values()] == [[5]]
