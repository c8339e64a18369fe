"""The promise of `capture`: the kernels of whatever script a tinygrad user has, counted, and a line for what is not."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from kcg.compat.capture import CapturedCall, Recorder, Unrecorded
from kcg.compat.tiny import Ops, UOp
from kcg.dataset.journal import Journal
from kcg.errors import CodecError, ExitCode, ScriptError
from kcg.kernel.codec import ast_of
from kcg.kernel.opts.schedule import RAW
from kcg.kernel.opts.space import KernelSpace
from kcg.kernel.symbolic import bounds_of
from kcg.measure.inputs import buffers_of
from kcg.measure.protocol import PROTOCOL
from kcg.types import Workload
from kcg.workloads.capture import Refused, to_workload
from kcg.workloads.script import NAME_LENGTH, Captured, Form, Program, bounded, capture_program, workload_json
from kcg.workloads.tally import LINES, Tally, read_tally
from tests.commands import python
from tests.known_targets import X86
from tests.slow import first_rows
from tests.waiting import PATIENCE_S

SCRIPTS = Path(__file__).parents[1] / "scripts"
STEPS, POSITIONS = 4, 12
DEV = os.environ["DEV"]


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "kcg.dataset", *map(str, arguments)]


def run(*arguments: str | Path, stdin: str = "", **settings: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "kcg.dataset", *arguments, stdin=stdin, **settings)


def capture_of(script: Path, *arguments: str, dev: str = DEV) -> Captured:
    return capture_program(Program(Form.SCRIPT, str(script), arguments), dev=dev)


def executions_printed(text: str) -> int:
    """How many kernels tinygrad says it ran, with DEBUG=2; of a copy it prints where it comes from."""
    return sum("*** CPU" in line and "<-" not in line for line in text.splitlines())


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Workload], dict[str, str]]:
    """Three scripts recorded into one journal: its path, its workloads, and what was printed."""
    out, printed = tmp_path_factory.mktemp("captured") / "all.sqlite", {}
    for script, arguments, settings in (
        ("train_loop", ["--steps", str(STEPS)], {"DEBUG": "2"}),
        ("decode_loop", [str(POSITIONS)], {}),
        ("sharded", [], {}),
    ):
        done = run("capture", "--out", out, "--", SCRIPTS / f"{script}.py", *arguments, **settings)
        assert done.returncode == ExitCode.OK, done.stderr
        assert "Traceback" not in done.stderr
        printed[script] = done.stderr
    with Journal.open(out, create=False) as journal:
        workloads = {w.name: w for w in journal.workloads()}
    return out, workloads, printed


@pytest.mark.slow
def test_captures_accumulate_under_names_of_their_own(
    captured: tuple[Path, dict[str, Workload], dict[str, str]],
) -> None:
    presets = {name: w.preset for name, w in captured[1].items()}
    assert presets == {
        "script:train_loop": f"--steps {STEPS}",
        "script:decode_loop": str(POSITIONS),
        "script:sharded": "",
    }


@pytest.mark.slow
def test_a_training_loop_has_every_execution_that_tinygrad_prints(
    captured: tuple[Path, dict[str, Workload], dict[str, str]],
) -> None:
    workload, printed = captured[1]["script:train_loop"], captured[2]["train_loop"]
    executions = executions_printed(printed)
    assert executions > 50 and "loss " in printed
    assert sum(c.calls for c in workload.calls) == executions, "replays too"
    asts = {c.region.id: ast_of(c.region.kernel) for c in workload.calls}
    in_place = [c for c in workload.calls if any(b.is_input and b.is_output for b in buffers_of(asts[c.region.id]))]
    assert any(c.calls >= STEPS - 1 for c in in_place), "the optimiser's kernels"
    generators = [c for c in workload.calls if any(u.op is Ops.THREEFRY for u in asts[c.region.id].toposort())]
    assert sum(c.calls for c in generators) >= 2 * STEPS, "the random numbers of batches and dropout"


@pytest.mark.slow
def test_a_kernel_of_a_decode_loop_is_one_call_that_knows_every_position_and_replay(
    captured: tuple[Path, dict[str, Workload], dict[str, str]],
) -> None:
    symbolic = [call for call in captured[1]["script:decode_loop"].calls if call.variables]
    assert len(symbolic) > 3 and len({call.region.id for call in symbolic}) == len(symbolic)
    for call in symbolic:
        assert call.seen == tuple(((("start_pos", i),), 1) for i in range(1, POSITIONS + 1)), "replays of TinyJit too"
        assert call.variables == (("start_pos", POSITIONS),) and call.calls == POSITIONS
        low, high = bounds_of(call)
        assert (low.variables, high.variables) == ((("start_pos", 1),), (("start_pos", POSITIONS),))
        assert low.share == pytest.approx(0.5) and high.share == pytest.approx(0.5)
    assert "values of their variables" not in captured[2]["decode_loop"], "nothing is left out"


@pytest.mark.slow
def test_replays_of_a_graph_are_counted_by_its_kernels(
    captured: tuple[Path, dict[str, Workload], dict[str, str]],
) -> None:
    plain = captured[1]["script:decode_loop"]
    graphed = capture_of(SCRIPTS / "decode_loop.py", str(POSITIONS), dev="NULL").workload
    assert Counter({c.variables: c.calls for c in graphed.calls if c.variables}) == Counter(
        {c.variables: c.calls for c in plain.calls if c.variables}
    )
    assert max(c.calls for c in graphed.calls) == POSITIONS


@pytest.mark.slow
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
        "generate",
        "--from",
        captured[0],
        "--out",
        tmp_path / "d.sqlite",
        "--schedules-per-kernel",
        "1",
        "--kernels-per-family",
        "3",
        "--budget",
        "3000s",
    )
    assert done.returncode == ExitCode.OK and "complete" in done.stdout, done.stderr
    with Journal.open(tmp_path / "d.sqlite", create=False) as journal:
        rows = list(journal.measurements(PROTOCOL))
        assert set(journal.first_seen().values()) >= {f"script:train_loop/--steps {STEPS}"}
    assert len(rows) >= 9 and all(r.status == "ok" and r.checked for r in rows)
    assert any(r.variables for r in rows)


@pytest.mark.slow
def test_a_script_that_sets_tinygrad_up_runs_as_it_would_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CACHEDB", str(tmp_path / "users.db"))
    workload = capture_of(SCRIPTS / "own_settings.py").workload
    printed = capfd.readouterr().err
    assert "HALF BEAM=2 PARALLEL=2 dtypes.half" in printed, "what it sets before it imports tinygrad counts"
    executions = executions_printed(printed)
    assert sum(c.calls for c in workload.calls) == executions == 5, "those of PARALLEL's processes too"
    assert any('"float16"' in c.region.kernel.ast_json for c in workload.calls)
    assert not any(tmp_path.iterdir()), "the user's cache is left alone"


def test_kernels_are_recorded_whatever_their_name_if_their_schedule_is_free() -> None:
    captured = capture_of(SCRIPTS / "hand_written.py")
    assert captured.lines == (
        "2 executions of 1 kernel (fixed_sums) are left out: the schedule is fixed by the author",
        "1 execution of 1 kernel (E_4_4) is left out: not encodable: AST node 3: axis type 'GLOBAL' is not allowed",
    )
    fixed, refused = captured.workload.left_out
    assert not fixed.searched_by_beam and refused.searched_by_beam
    names = {name for call in captured.workload.calls for name, _ in call.seen_as}
    assert names == {"", "doubled"}
    (doubled,) = (call for call in captured.workload.calls if call.seen_as == (("doubled", ()),))
    assert doubled.calls == 3


@pytest.mark.slow
def test_processes_that_a_script_starts_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    captured = capture_of(SCRIPTS / "processes.py")
    printed = capfd.readouterr().err
    assert "[9, 16]" in printed and "sum 85.0" in printed and "child ended with 7" in printed
    assert captured.lines == ("4 processes that the program started: what runs there is not recorded",)
    assert sum(c.calls for c in captured.workload.calls) == 1


@pytest.mark.slow
def test_arguments_input_output_and_neighbours_are_the_scripts_own(tmp_path: Path) -> None:
    done = run("capture", "--out", tmp_path / "c.sqlite", "--", SCRIPTS / "any_ending.py", "lines", stdin="3\n4\n")
    assert done.returncode == ExitCode.OK, done.stderr[:1000]
    assert "first 256.0" in done.stderr and "read 7" in done.stderr
    assert done.stderr.count("much to say") == 20_000 and "much to say" not in done.stdout


@pytest.mark.parametrize(("how", "kernels"), first_rows(1, [("leave", 2), ("later", 4), ("exit", 2)]))
def test_nothing_is_lost_however_a_script_ends_well(how: str, kernels: int) -> None:
    captured = capture_of(SCRIPTS / "any_ending.py", how)
    assert len(captured.workload.calls) == kernels and captured.lines == ()


FAILING = [
    ("exit-3", "ended with exit code 3 ({script}, line {exit_3})"),
    ("exit-text", "ended with 'no data here' ({script}, line {exit_text})"),
    ("exit-true", "ended with exit code 1 ({script}, line {exit_true})"),
    ("leave-4", "ended with exit code 4 ({script}, line {leave_4})"),
    ("raise", "raised RuntimeError: the loss is ({script}, line {raise})"),
    ("assert", "raised AssertionError ({script}, line {assert})"),
    ("below", "raised ZeroDivisionError: division by zero ({folder}/neighbour.py, line {below})"),
    ("odd", "raised Odd: no message: ValueError ({script}, line {odd})"),
    ("told", "was ended by SIGTERM ({script}, line {told})"),
    ("interrupt", "raised KeyboardInterrupt ({script}, line {interrupt})"),
    ("replaced", "replaced its process by {python} ({script}, line {replaced})"),
]


def as_recorded(text: str) -> str:
    """What a script says with its places filled in: the line of each ending has its name in a comment."""
    script, neighbour = SCRIPTS / "any_ending.py", SCRIPTS / "neighbour.py"
    places = {"script": str(script), "folder": str(SCRIPTS), "python": sys.executable}
    for file in (script, neighbour):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if (found := re.search(r"# here: (\w+)$", line)) is not None:
                places[found[1]] = str(number)
    return text.format_map(places)


AS_OTHERS = {"exit-text", "exit-true", "assert", "below", "odd"}
"""What ends a script as another of them does, and is said in other words: see the next test."""


SAID_TWICE = {"exit-3", "replaced"}
"""An end of the script's own, and one that leaves nobody to report. How each is said is known with what it ran."""


SOME_FAILING = [pytest.param(how, says, marks=pytest.mark.slow if how in AS_OTHERS else ()) for how, says in FAILING]


@pytest.mark.parametrize(("how", "says"), first_rows(1, SOME_FAILING))
def test_a_script_that_fails_keeps_what_it_ran_and_says_where_it_failed(
    how: str, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    captured = capture_of(SCRIPTS / "any_ending.py", how)
    assert captured.lines == (f"{SCRIPTS / 'any_ending.py'} {as_recorded(says)}: what it ran before is recorded",)
    assert len(captured.workload.calls) == 2 and not captured.interrupted
    assert "Traceback" not in capfd.readouterr().err


KILLED = [
    ("killed", "SIGKILL"),
    ("dereferences", "SIGSEGV"),
    pytest.param("divides", "SIGFPE", marks=pytest.mark.slow),
    pytest.param("aborts", "SIGABRT", marks=pytest.mark.slow),
    pytest.param("real-time", f"signal {signal.SIGRTMIN + 3}", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("how", "name"), first_rows(1, KILLED))
def test_a_script_that_dies_by_a_signal_keeps_what_it_ran(how: str, name: str, ran_well: Captured) -> None:
    """All that is known of one that ends well: kernels, counts, how they are asked for, sequences with their lines."""
    script = SCRIPTS / "any_ending.py"
    captured = capture_of(script, how)
    assert captured.lines == (f"{script} was killed by {name}: what it ran before is recorded, 2 kernels",)
    assert not captured.interrupted
    assert replace(captured.workload, preset="exit") == ran_well.workload
    assert workload_json(captured.workload)["sequences"] == workload_json(ran_well.workload)["sequences"]
    assert [call.seen_as for call in captured.workload.calls] == [call.seen_as for call in ran_well.workload.calls]


@pytest.fixture(scope="module")
def ran_well() -> Captured:
    return capture_of(SCRIPTS / "any_ending.py", "exit")


DYING = """
import os, sys
from tinygrad import Tensor, TinyJit, Variable
sys.path.insert(0, {scripts!r})
import two_devices, hand_written
w = Tensor([[float(i * j) for i in range(16)] for j in (1, 2)]).realize()
jitted = TinyJit(lambda w, n: (w[:, :n] * 2).sum(axis=1).realize())
for n in range(1, 9):
    jitted(w, Variable("n", 1, 16).bind(n))
if os.fork() == 0:  # what it counts is its own
    (w * 3).contiguous().realize()
    os._exit(0)
os.wait()
x = Tensor.ones(4, dtype="int32").contiguous().realize()
if {dies}:
    os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
def test_variables_devices_replays_and_what_is_left_out_are_kept_too(tmp_path: Path) -> None:
    script, found = tmp_path / "dying.py", list[Captured]()
    for dies in (False, True):
        script.write_text(DYING.format(scripts=str(SCRIPTS), dies=dies))
        found.append(capture_of(script))
    well, died = found
    assert workload_json(died.workload) == workload_json(well.workload)
    assert any(len(call.seen) == 8 for call in died.workload.calls) and died.workload.left_out
    kernels = len({call.region.id for call in died.workload.calls})
    assert died.lines == (
        f"{script} was killed by SIGKILL: what it ran before is recorded, {kernels} kernels",
        *well.lines,
    )


@pytest.mark.slow
def test_a_kernel_that_divides_by_zero_costs_only_itself(tmp_path: Path) -> None:
    """tinygrad's assembler divides whole numbers by the processor's own instruction, which raises SIGFPE."""
    script, out = tmp_path / "divides.py", tmp_path / "k.sqlite"
    script.write_text(
        "from tinygrad import Tensor\nx = Tensor(list(range(64)), dtype='int32').realize()\n"
        "for size in (16, 64):\n    print((x[:size] * size).sum().item(), flush=True)\n"
        "print((x // (x % 5)).realize().numpy()[:3])\n"
    )
    done = run("capture", "--out", out, "--", script)
    assert done.returncode == ExitCode.OK, done.stderr
    assert f"{script} was killed by SIGFPE: what it ran before is recorded, 2 kernels" in done.stderr
    with Journal.open(out, create=False) as journal:
        (workload,) = journal.workloads()
    assert sum(call.calls for call in workload.calls) == 2


def test_kernels_are_told_of_while_the_program_runs(tmp_path: Path) -> None:
    """Those that ran are, each once, while it waits to run another; what runs with values of variables is not."""
    script, told = tmp_path / "waits.py", tmp_path / "told"
    script.write_text(
        "import pathlib, time\nfrom tinygrad import Tensor, UOp\nx = Tensor(list(range(64)), dtype='int32').realize()\n"
        "for _ in range(3): (x + 1).realize()\n"
        f"end = time.monotonic() + 200\nwhile not pathlib.Path({str(told)!r}).exists() and time.monotonic() < end:\n"
        "    time.sleep(0.05)\n"
        "size = UOp.variable('size', 1, 64).bind(8)\n(x[:size] * 2).sum().realize()\ntime.sleep(3)\n"
    )
    seen = list[Workload]()

    def tell(workload: Workload) -> None:
        seen.append(workload)
        told.touch()

    captured = capture_program(Program(Form.SCRIPT, str(script), ()), dev=DEV, seen=tell)
    ids = [call.region.id for workload in seen for call in workload.calls]
    assert ids and ids[0] in {call.region.id for call in captured.workload.calls} and len(ids) == len(set(ids))
    assert not {call.region.id for call in captured.workload.calls if call.variables} & set(ids)


def test_a_line_that_the_end_cut_off_counts_for_nothing(tmp_path: Path) -> None:
    tally = Tally(tmp_path, Recorder(), device="CPU")
    tally.ran(Unrecorded("key", "name", "reason"), 3)
    tally.ran(Unrecorded("other", "name", "reason"), 1)
    whole = (tmp_path / LINES).read_bytes()
    for cut in range(len(whole)):
        (tmp_path / LINES).write_bytes(whole[:cut])
        assert len(read_tally(tmp_path).others) == whole[:cut].count(b"\n")
    (tmp_path / LINES).write_bytes(whole)
    assert read_tally(tmp_path).others[Unrecorded("key", "name", "reason")] == 3
    assert read_tally(tmp_path / "nothing").calls == ()


IDLE = [pytest.param(how, says, marks=() if how in SAID_TWICE else pytest.mark.slow) for how, says in FAILING]


@pytest.mark.parametrize(("how", "says"), IDLE)
def test_a_script_that_fails_before_its_first_kernel_is_one_line(
    how: str, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    ran = "before it ran a tinygrad kernel that can be recorded; run it alone first"
    script = SCRIPTS / "any_ending.py"
    with pytest.raises(ScriptError, match=f"^{re.escape(f'{script} {as_recorded(says)}, {ran}')}$"):
        capture_of(script, how, "--idle")
    assert "Traceback" not in capfd.readouterr().err


def test_a_programs_own_hook_for_exceptions_is_called(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "hooked.py"
    script.write_text("import sys\nsys.excepthook = lambda *seen: print('hooked', seen[0].__name__)\n1 / 0\n")
    with pytest.raises(ScriptError, match="raised ZeroDivisionError"):
        capture_of(script)
    assert "hooked ZeroDivisionError" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("killed", "was killed by SIGKILL, before it ran a tinygrad kernel that can be recorded; run it alone first"),
        ("exit", "ran no tinygrad kernel that can be recorded: does it realise its tensors?"),
    ],
)
def test_what_cannot_be_recorded_is_one_line(how: str, says: str) -> None:
    script = SCRIPTS / "any_ending.py"
    with pytest.raises(ScriptError, match=re.escape(f"{script} {says}")):
        capture_of(script, how, "--idle")


class Interrupted(NamedTuple):
    """A capture that was interrupted."""

    out: Path
    process: subprocess.Popen[str]
    before: list[str]  # the lines on stderr until the script waited
    printed: str
    after: str


@contextlib.contextmanager
def waiting(*arguments: str | Path) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A capture whose script has come to where it waits, and what was said until then."""
    with subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        yield process, list(iter(process.stderr.readline, "waiting\n"))


CASES = [("wait", True), ("save", True), ("wait", False), ("deaf", False)]
"""What a script does when it is interrupted, and whether it had run nothing by then."""


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Interrupted]:
    """How captures ended that were interrupted, all of them at once: what ignores Ctrl-C is waited for."""
    folder, begun = tmp_path_factory.mktemp("interrupted"), {}
    with contextlib.ExitStack() as captures:
        for case in CASES:
            out = folder / f"{len(begun)}.sqlite"
            arguments = (SCRIPTS / "any_ending.py", case[0], *(("--idle",) if case[1] else ()))
            begun[case] = (out, *captures.enter_context(waiting("capture", "--out", out, "--", *arguments)))
        for _, process, _ in begun.values():
            os.killpg(process.pid, signal.SIGINT)
        return {
            case: Interrupted(out, process, printed, *process.communicate(timeout=PATIENCE_S))
            for case, (out, process, printed) in begun.items()
        }


@pytest.mark.slow
@pytest.mark.parametrize(("how", "idle"), CASES)
def test_ctrl_c_ends_a_capture_without_a_traceback_and_keeps_what_ran(
    how: str, idle: bool, interrupted: dict[tuple[str, bool], Interrupted]
) -> None:
    script, ended = SCRIPTS / "any_ending.py", interrupted[how, idle]
    printed, message = ended.printed, [*ended.before, *ended.after.splitlines()]
    assert ended.process.returncode == ExitCode.INTERRUPTED
    assert ("saved" in message) == (how == "save")
    assert not any("Traceback" in line for line in message)
    assert ended.out.exists() != idle
    if idle:
        assert message[-1] == f"kcg: interrupted: {script} had run nothing that is recorded"
    else:
        assert "2 kernels, executed 2 times" in printed
        assert any("raised KeyboardInterrupt" in line for line in message) == (how == "wait")
        assert any("was ended by SIGTERM" in line for line in message) == (how == "deaf")


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
    refused: Refused = {}
    assert to_workload("w", "", calls, refused=refused).calls == ()
    assert [(list(counts.values())) for counts in refused.values()] == [[5]]
