"""The whole model with the chosen schedules computes what it computes with tinygrad's own, or the result is refused."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from kcg.compat.programs import captured_at_once
from kcg.errors import ExitCode, VerificationError
from kcg.handover.apply import apply
from kcg.handover.in_place import compiled_before
from kcg.handover.tuned import tuned
from kcg.judge import step as steps
from kcg.judge import whole_model
from kcg.judge.step import REPLAYS, Stage, compare, different
from kcg.judge.whole import MAX_TOLERANCE, Cost, judge_outputs, relative_error, rounding_of_sums
from kcg.judge.whole_model import Model
from kcg.kernel.compile import compile_schedule
from kcg.kernel.kinds import ACTION_SPACE_VERSION
from kcg.kernel.opts.schedule import Opt, schedule_of
from kcg.kernel.opts.space import KernelSpace
from kcg.kernel.program import Compiled
from kcg.measure import isolated
from kcg.measure.device_info import NoSensors, detect
from kcg.optimize.settings import Settings
from kcg.optimize.wholes import child_of, is_runnable
from kcg.report.endings import exit_code_of
from kcg.report.result import read_result, write_result
from kcg.types import Finalist, ModelCheck, RegionResult, Result, Schedule, Verification, Workload
from kcg.workloads.family import Step
from kcg.workloads.registry import spec_of
from tests.sample_result import sample_result
from tests.tiny_models import DTYPES, TINY
from tests.waiting import PATIENCE_S, wait_until

DEV = os.environ["DEV"]
CHILD = "tests.tiny_models"
WRONG = schedule_of([Opt("PADTO", 1, 32), Opt("UNROLL", 0, 32)])
"""With it, tinygrad 0.14.0 makes a kernel of a maximum over 16 that writes nothing at all (see test_verify)."""
KERNELS = 4
MAXIMUM = 1  # which of them takes a maximum
Make = Callable[..., Result]


def finalist(space: KernelSpace, schedule: Schedule) -> Finalist:
    return Finalist(schedule, 2e-6, 1e-6, (1e-6, 3e-6), Verification(True), name=space.name(schedule))


def another(space: KernelSpace) -> Schedule:
    """A legal schedule that is not tinygrad's own, if there is one it adds in another order."""
    steps = [a for a in space.actions(space.start()) if space.key(a.schedule) != space.key(space.baseline())]
    for action in sorted(steps, key=lambda a: not a.label.startswith("UNROLL")):
        with contextlib.suppress(RuntimeError):  # tinygrad's X86 assembler refuses some in bfloat16
            compile_schedule(space.region, action.schedule, space.target)
            return action.schedule
    return space.baseline()


def model(**of: Any) -> Model:
    return Model(Workload("tiny", "", ()), DEV, **{"module": CHILD, "steady_s": 0.0, **of})


@pytest.fixture(scope="module")
def make() -> Make:
    """A result of the tiny model, every kernel with another schedule than tinygrad's; `maximum` is for that one."""
    target, toolchain = detect(DEV, ACTION_SPACE_VERSION)

    @functools.cache
    def captured(preset: str) -> list[tuple[Any, KernelSpace, Schedule]]:
        spaces = [(call, KernelSpace(call.region, target)) for call in TINY.capture(preset).calls]
        return [(call, space, another(space)) for call, space in spaces]

    def result(preset: str, maximum: Schedule | None = None) -> Result:
        rows = []
        assert len(captured(preset)) == KERNELS
        for i, (call, space, other) in enumerate(captured(preset)):
            chosen = maximum if maximum is not None and i == MAXIMUM else other
            base, ours = finalist(space, space.baseline()), finalist(space, chosen)
            rows.append(RegionResult(call.region, call.calls, base, ours, 1, "improved"))
        return replace(
            sample_result(),
            workload="tiny",
            preset=preset,
            target=target,
            toolchain=toolchain,
            regions=tuple(rows),
            recomputes=(),
            expectations=(),
        )

    return result


# ---- real runs ----


@pytest.mark.parametrize("dtype", [DTYPES[0], *(pytest.param(dtype, marks=pytest.mark.slow) for dtype in DTYPES[1:])])
def test_another_order_of_summation_passes_and_garbage_fails(make: Make, dtype: str) -> None:
    stages: list[Stage] = []
    (good,) = compare(TINY.runnable(dtype, 3), [make(dtype)], seed=3, report=stages.append)  # type: ignore[misc]
    assert good.passed, good
    assert good.kernels >= KERNELS - 1 and good.seed == 3 and good.reason == ""
    assert good.error is not None and good.tolerance is not None and good.error <= good.tolerance < MAX_TOLERANCE
    assert good.before_s is not None and good.after_s is not None and 0 < good.after_s < 10
    assert stages == [Stage(steps.CHOSEN), Stage(steps.OWN)] * (1 + REPLAYS), "replayed in turns"
    assert good.clock == "wall clock, median of 5 in turns", "a CPU has no events"

    # another seed: the kernel writes nothing, and this process may still hold what the last run wrote there
    (bad,) = compare(TINY.runnable(dtype, 4), [make(dtype, WRONG)], seed=4)  # type: ignore[misc]
    assert bad.passed is False, bad
    assert "differs" in bad.reason or "not finite" in bad.reason
    assert bad.tolerance is None or bad.tolerance < MAX_TOLERANCE


def test_what_the_device_reported_in_each_step_is_kept(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    class Sensors(NoSensors):
        """Clocks that fall with every look, of whichever program."""

        looks = 0

        def begin(self) -> None:
            self.reported: list[float] = []

        def look(self) -> None:
            Sensors.looks += 1
            self.reported.append(1980.0 - Sensors.looks)

        def readings(self) -> tuple[tuple[str, float], ...]:
            return ("sm_mhz_min", min(self.reported)), ("sm_mhz_max", max(self.reported))

    monkeypatch.setattr(steps, "sensors_for", lambda target: Sensors())
    (check,) = compare(TINY.runnable("float32", 3), [make("float32")], seed=3)  # type: ignore[misc]
    assert check.clocks_after == (("sm_mhz_min", 1971.0), ("sm_mhz_max", 1979.0)), "the first, third, … ninth look"
    assert check.clocks_before == (("sm_mhz_min", 1970.0), ("sm_mhz_max", 1978.0))
    assert Sensors.looks == 2 * REPLAYS


def test_a_long_step_is_replayed_as_often_as_its_outputs_are_read(make: Make) -> None:
    stages: list[Stage] = []
    result = make("float32")
    row = result.regions[0]
    chosen = replace(row.chosen, cold_s=2 * steps.LONG_STEP_S)
    slow = replace(result, regions=(replace(row, chosen=chosen), *result.regions[1:]))
    (check,) = compare(TINY.runnable("float32", 3), [slow], seed=3, report=stages.append)  # type: ignore[misc]
    assert check.passed and check.clock == "wall clock, median of 3 in turns", check
    assert stages == [Stage(steps.CHOSEN), Stage(steps.OWN)] * (1 + steps.READ)


def test_several_plans_are_compared_with_one_run_of_the_models_own(make: Make) -> None:
    """Each has its own verdict, and all are replayed in the same turns."""
    stages: list[Stage] = []
    plans = [make("float32"), make("float32", WRONG), make("float32")]
    checks = compare(TINY.runnable("float32", 5), plans, seed=5, report=stages.append)  # type: ignore[misc]
    assert [check.passed for check in checks] == [True, False, True], checks
    assert len({check.before_s for check in checks}) == 1 and len({check.after_s for check in checks}) == 3
    turn = [*(Stage(steps.CHOSEN, place) for place in range(3)), Stage(steps.OWN)]
    assert stages == turn * (1 + REPLAYS)


def test_a_step_is_captured_once_for_all_plans_and_tinygrads_own(make: Make) -> None:
    step = TINY.runnable("float32", 6)  # type: ignore[misc]
    runs: list[Any] = []
    counted = replace(step, run=lambda **inputs: (runs.append(inputs), step.run(**inputs))[1])
    checks = compare(counted, [make("float32"), make("float32", WRONG)], seed=6)
    assert [check.passed for check in checks] == [True, False] and len(runs) == 1


@pytest.mark.slow
def test_a_plan_that_ends_the_process_fails_and_the_others_run_without_it(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Beside the others, and alone."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    plan = make("dies-twice-tuned")
    bad, good = model().checks([plan, plan], timeout_s=PATIENCE_S)
    assert bad.passed is False and "the model fails with the chosen schedules: " in bad.reason
    assert good.passed and good.after_s is not None, good


@pytest.mark.slow
@pytest.mark.usefixtures("children")
def test_a_plan_that_fails_beside_others_alone_is_not_to_blame(make: Make) -> None:
    """Memory that the others hold may be what it lacks."""
    first, second = model().checks([make("dies-once-tuned")] * 2, timeout_s=PATIENCE_S)
    assert first.passed and second.passed, (first, second)


@pytest.mark.slow
def test_where_memory_is_short_one_is_released_before_the_other_begins(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kcg.compat.hardware.memory_of", lambda device: (1, 1 << 30))
    stages: list[Stage] = []
    (check,) = compare(TINY.runnable("float32", 3), [make("float32")], seed=3, report=stages.append)  # type: ignore[misc]
    assert check.passed and check.clock == "wall clock, median of 5", check
    assert stages == [Stage(steps.CHOSEN)] * (1 + REPLAYS) + [Stage(steps.OWN)] * (1 + REPLAYS)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_where_memory_is_short_a_plan_does_not_find_what_another_left(
    make: Make, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """Memory that one gives back is the next one's: a kernel that writes nothing would find there what is right."""
    monkeypatch.setattr("kcg.compat.hardware.memory_of", lambda device: (1, 1 << 30))
    step, plans = TINY.runnable(dtype, 7), [make(dtype), make(dtype, WRONG)]
    good, bad = compare(step, plans, seed=7)  # type: ignore[misc]
    assert good.passed and bad.passed is False, (good, bad)


class SlowDevice:
    """A device that does what it was given while somebody waits for it, and its clock: nothing else takes time."""

    def __init__(self) -> None:
        self.now_s = self.queued_s = 0.0

    def launch(self, seconds: float) -> None:
        self.queued_s += seconds

    def synchronize(self) -> None:
        self.now_s, self.queued_s = self.now_s + self.queued_s, 0.0

    def perf_counter(self) -> float:
        return self.now_s


def test_a_step_is_timed_with_all_that_the_device_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times the work takes four times as long; what was left running before a sample is not in it."""
    from kcg.compat import programs

    device = SlowDevice()
    monkeypatch.setattr(programs, "Device", {"CPU": device})
    monkeypatch.setattr(programs, "time", device)
    clock = programs.StepClock("CPU")
    for launches in (1, 4):
        device.launch(7.0)
        assert clock(lambda launches=launches: [device.launch(0.5) for _ in range(launches)]) == 0.5 * launches
        device.launch(7.0)
        assert clock.once(lambda launches=launches: [device.launch(0.5) for _ in range(launches)]) == (
            0.5 * launches,
            True,
        )
    assert programs.clock_of("CUDA") == "device events" and programs.clock_of("CPU") == "wall clock"


def test_a_step_of_this_device_is_done_when_its_sample_is_taken() -> None:
    from tinygrad import Device, Tensor

    from kcg.compat.programs import StepClock, captured_at_once

    values = Tensor.ones(64, 64).contiguous().realize()
    once, clock, made = captured_at_once(lambda x: (x @ x).contiguous()), StepClock(Device.DEFAULT), list[Tensor]()
    once(x=values)
    assert clock(lambda: made.append(once(x=values))) > 0
    assert (made[0].numpy() == 64).all()


@pytest.mark.gpu
def test_on_a_gpu_what_the_host_does_first_is_hidden() -> None:
    from tinygrad import Tensor

    from kcg.compat.programs import StepClock, captured_at_once

    values = Tensor.ones(64, 64, device="CUDA").contiguous().realize()
    once, clock = captured_at_once(lambda x: (x @ x).contiguous()), StepClock("CUDA")
    once(x=values)

    for late_s in (0.004, 0.03):  # less, and more, than what is hidden at first

        def late(seconds: float = late_s) -> None:
            time.sleep(seconds)
            once(x=values)

        assert 0 < min(clock(late) for _ in range(3)) < 0.002


def test_a_host_that_was_too_slow_to_be_hidden_gets_more_time() -> None:
    from kcg.compat.programs import HIDDEN_MOST_S, HIDDEN_S, HIDING_TRIES, hiding

    def sampled(host_s: Callable[[float], float], first_s: float = HIDDEN_S) -> tuple[list[float], float]:
        """The times for which a device was kept busy by a host of that kind, and the last sample."""
        busy: list[float] = []

        def sample(busy_s: float) -> tuple[float, float]:
            busy.append(busy_s)
            return 1.0 + max(host_s(busy_s) - busy_s, 0.0), host_s(busy_s)  # what is not hidden is in the sample

        seconds, enough_s = hiding(sample, first_s)
        assert enough_s >= busy[-1]
        return busy, seconds

    assert sampled(lambda _: 0.005) == ([HIDDEN_S], 1.0)
    busy, seconds = sampled(lambda _: 0.03)
    assert len(busy) == 2 and busy[1] > 0.03 and seconds == 1.0
    assert sampled(lambda _: 0.03, busy[1]) == ([busy[1]], 1.0), "where the next sample begins"
    busy, _ = sampled(lambda busy_s: busy_s + 2.0)
    assert busy == [HIDDEN_S, HIDDEN_MOST_S], "a host that waits for the device itself is not hidden"
    assert len(sampled(lambda busy_s: busy_s, 1e-6)[0]) == HIDING_TRIES


# ---- what was compiled before


def test_what_was_compiled_before_runs_in_the_place_of_tinygrads_own_compiling(make: Make) -> None:
    """The same code in the place of the same kernels, and no other: with one that writes nothing it is seen."""
    result = make("float32")
    own = {row.region.id: _compiled(row, row.baseline.schedule, result) for row in result.regions}
    step = TINY.runnable("float32", 3)  # type: ignore[misc]
    plain = _output(step, {}, result)[0]
    same, used = _output(step, own, result)
    assert used == set(own) and np.array_equal(same, plain)
    row = result.regions[MAXIMUM]
    wrong, used = _output(step, {row.region.id: _compiled(row, WRONG, result)}, result)
    assert used == {row.region.id} and not np.array_equal(wrong, plain)
    (check,) = compare(step, [result], seed=3, programs=own)
    assert check.passed and check.kernels >= KERNELS - 1, check


def _compiled(row: RegionResult, schedule: Schedule, result: Result) -> Compiled:
    return compile_schedule(row.region, schedule, result.target)


def _output(step: Step, programs: dict[str, Compiled], result: Result) -> tuple[Any, set[str]]:
    """What a step makes of its inputs, and which programs ran. What it makes of others is left in its memory."""
    with compiled_before(programs, result.target) as used:
        run = captured_at_once(step.run)
        run(**step.inputs)
        made = run(**step.inputs).numpy()
        run(**different(step.inputs))
        return made, used


@pytest.fixture
def children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[psutil.Process]]:
    """Where children find these tests, and those that are left."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return lambda: [p for p in psutil.process_iter(["cmdline"]) if CHILD in (p.info["cmdline"] or [])]


@pytest.mark.slow
def test_in_a_child_with_a_cache_of_its_own(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And with what was compiled before."""
    monkeypatch.setenv("BEAM", "2")  # the user's: it would search, and it is not what tinygrad does by itself
    monkeypatch.setenv("CACHEDB", str(tmp_path / "users.db"))
    results = [make("float32"), make("float32", WRONG)]
    own = {row.region.id: _compiled(row, row.baseline.schedule, results[0]) for row in results[0].regions}
    good, bad = model(programs=lambda: own).checks(results, timeout_s=PATIENCE_S)
    assert good.passed and good.kernels == KERNELS, good
    assert bad.passed is False and bad.kernels == KERNELS, bad
    assert not (tmp_path / "users.db").exists()


@pytest.mark.slow
def test_on_published_weights(make: Make, tmp_path: Path) -> None:
    weights = tmp_path / "zeros"
    weights.write_text("0")
    (check,) = model(weights=str(weights)).checks([make("float32")], timeout_s=PATIENCE_S)
    assert check.passed is None and "the output is zero with tinygrad's own schedules either" in check.reason, check
    assert check.weights == str(weights)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "passed", "says"),
    [
        pytest.param(
            "dies-at-once",
            None,
            "no verdict: the model does not run with any schedules: .*SIGABRT",
            marks=pytest.mark.slow,
        ),
        ("dies-when-tuned", False, "the model fails with the chosen schedules: .*SIGABRT"),
        ("unknown", None, "no verdict: it failed while getting its weights: "),
    ],
)
def test_a_child_that_dies_is_a_reason(make: Make, preset: str, passed: bool | None, says: str) -> None:
    result = make(preset)
    module = CHILD if preset != "unknown" else "kcg.judge.whole_model"  # which knows no tiny model
    (check,) = model(module=module).checks([result], timeout_s=PATIENCE_S)
    assert check.passed is passed, check
    assert re.match(says, check.reason), check.reason
    assert "\n" not in check.reason


@pytest.mark.slow
def test_where_looking_at_the_device_took_the_time_no_more_is_spent(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []  # seconds that each took
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(looks))
    monkeypatch.setattr(whole_model, "time", clock)
    looking = model(check_device=lambda: looks.append(PATIENCE_S))
    (check,) = looking.checks([make("dies-when-tuned")], timeout_s=PATIENCE_S)
    assert check.passed is None and "no time to try others" in check.reason and "SIGABRT" in check.reason
    assert len(looks) == 1, "no other process was started"


@pytest.mark.slow
def test_a_child_that_hangs_is_killed_in_time(make: Make, children: Callable[[], list[psutil.Process]]) -> None:
    (check,) = model().checks([make("hangs")], timeout_s=2.5)  # it would not end by itself
    assert check.passed is None
    assert re.match(r"no verdict: the whole model's run did not finish in 2\.\d+ s \(", check.reason), check.reason
    assert wait_until(lambda: not children()), "a guardian sees the end of its child a moment later"


@pytest.mark.parametrize(
    ("preset", "says"),
    [
        ("nan", "no verdict: the output is not finite with tinygrad's own schedules either"),
        ("zero", "no verdict: the output is zero with tinygrad's own schedules either"),
        ("other-kernels", "no verdict: 4 of 4 changed kernels do not occur when the model runs"),
    ],
)
def test_what_shows_nothing_is_no_pass(make: Make, preset: str, says: str) -> None:
    (check,) = compare(TINY.runnable(preset, 0), [make(preset)], seed=0)  # type: ignore[misc]
    assert (check.passed, check.reason) == (None, says)


# ---- the verdict ----

RNG = np.random.default_rng(0)
OWN = [RNG.normal(size=(64, 32))]
SHAKEN = [[OWN[0] * (1 + 1e-6 * RNG.normal(size=(64, 32)))] for _ in range(2)]
EPS = 2.0**-23


def judged(*tuned_outputs: Any, sums: float = 16 * EPS) -> ModelCheck:
    return judge_outputs([[o] for o in tuned_outputs], OWN, SHAKEN, eps=EPS, sums=sums)


def test_the_tolerance_is_measured() -> None:
    assert judged(OWN[0]).passed
    assert judged(OWN[0]).error == 0
    assert judged(OWN[0]).tolerance == pytest.approx(93e-6, rel=0.2)
    assert judged(OWN[0] * (1 + 1e-6)).passed
    assert judged(OWN[0] * (1 + 1e-3)).passed is False
    assert judged(OWN[0], OWN[0], OWN[0] + 1e-2).passed is False, "every run counts"


def test_one_wrong_row_does_not_drown() -> None:
    wrong = OWN[0].copy()
    wrong[17] *= 1.01
    assert np.linalg.norm(wrong - OWN[0]) / np.linalg.norm(OWN[0]) < 0.002
    assert relative_error([wrong], OWN) == pytest.approx(0.01, rel=0.3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_fails(value: float) -> None:
    wrong = OWN[0].copy()
    wrong[3, 4] = value
    assert judged(wrong).passed is False


def test_zeros_and_other_shapes_fail() -> None:
    assert judged(OWN[0] * 0).passed is False
    assert judged(OWN[0][:32]).passed is False


def test_a_model_too_sensitive_gets_no_result() -> None:
    check = judge_outputs([OWN], OWN, [[OWN[0] * 1.2], OWN], eps=EPS, sums=0.0)
    assert check.passed is None and "moves the output by" in check.reason
    infinite = judge_outputs([OWN], OWN, [[OWN[0] * np.nan], OWN], eps=EPS, sums=0.0)
    assert infinite.passed is None and infinite.tolerance is None


def test_longest_sum_counts(make: Make) -> None:
    assert rounding_of_sums(make("float32")) == pytest.approx(16**0.5 * EPS)


# ---- what becomes of it ----


def test_when_it_is_not_run(make: Make) -> None:
    result = replace(make("float32"), complete=True)
    unchanged = replace(result, regions=tuple(replace(r, outcome="kept") for r in result.regions))
    early, absent = replace(result, complete=False), model(runnable=False)
    assert model().why_not([unchanged, result]) == ["not run: no schedule was changed", ""]
    assert model().why_not([early])[0].startswith("not run: the run ended before")
    assert absent.why_not([result, early]) == ["not run: kcg has no runnable tiny", *model().why_not([early])]
    assert absent.expected_s(Cost(changed=1, step_s=1.0)) == 0
    whole = replace(model(), workload=TINY.capture("float32"))
    few, many = (whole.expected_s(Cost(changed=n, step_s=0.5)) for n in (1, 9))
    assert 0 < few < many < 30
    on_gpu = replace(whole, dev="CUDA")
    taken = {s: replace(on_gpu, captured_s=s).expected_s(Cost(changed=1, plans=3, step_s=0.5)) for s in (0.0, 2.0, 9.0)}
    assert taken[2.0] < taken[0.0] < taken[9.0], "what capturing took in the run it takes again"
    assert [is_runnable(Settings(name), "flux") for name in ("flux", "flux.py")] == [True, False]
    assert not is_runnable(Settings("tiny"), "tiny")


def test_a_result_that_failed_is_refused(make: Make, tmp_path: Path) -> None:
    failed = ModelCheck(False, "the output differs by 0.3", 0.3, 1e-4, kernels=2)
    result = replace(make("float32"), model_check=failed)
    path = tmp_path / "RESULT.json"
    write_result(result, path)
    assert read_result(path).model_check == failed
    assert exit_code_of(result) == ExitCode.VERIFICATION_FAILED
    with pytest.raises(VerificationError, match=r"the whole model: the output differs by 0\.3: run .* another --seed"):
        apply(path, widths=(2,), cache_db=tmp_path / "cache.db", facts=(result.target, result.toolchain))
    assert not (tmp_path / "cache.db").exists()
    with pytest.raises(VerificationError, match="the whole model"), tuned(path):
        pass
    passed = replace(result, model_check=ModelCheck(True, "", 1e-7, 1e-5))
    write_result(passed, path)
    assert exit_code_of(passed) == ExitCode.OK
    with tuned(path):
        pass


@pytest.mark.slow
def test_a_model_that_was_planned_is_not_scheduled_again() -> None:
    from tinygrad.schedule import schedule_cache

    from kcg.compat.programs import captured_at_once

    spec = spec_of("flux")
    assert spec.plan is not None and spec.runnable is not None
    spec.plan("mini")
    step = spec.runnable("mini", 0)
    known = set(schedule_cache)
    captured_at_once(step.run)(**step.inputs)
    assert set(schedule_cache) == known


def test_nothing_is_planned_ahead_beside_the_samples_of_a_cpu() -> None:
    assert Model(Workload("flux", "mini", ()), "CPU:X86").ahead() is None
    assert Model(Workload("script", "", ()), "CUDA", runnable=False).ahead() is None


def test_weights_are_made_ahead_of_a_model_on_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[Any, ...]] = []
    monkeypatch.setattr(whole_model, "begun", lambda *given: begun.append(given))
    gpu = SimpleNamespace(is_cpu=False, choice=SimpleNamespace(device="CUDA", dev="CUDA:TILE"))
    flux = Settings("flux", "mini", seed=3)
    for settings, device in (
        (flux, gpu),
        (flux, SimpleNamespace(is_cpu=True)),
        (replace(flux, weights="published"), gpu),
    ):
        child_of(settings, device)  # type: ignore[arg-type]
    assert begun == [("flux", "mini", 3, "CUDA:TILE")]


def test_a_step_that_was_recorded_ahead_is_compared_as_any_other(make: Make) -> None:
    step = TINY.runnable("float32", 0)  # type: ignore[misc]
    once = whole_model._prepare(step, "tiny", "float32", is_free=lambda: True)
    assert once is not None and once.captures == 1
    (check,) = compare(step, [make("float32")], seed=0, once=once)
    assert once.captures == 1 and check.passed is True, check.reason


@pytest.mark.slow
def test_a_child_that_waits_takes_its_job_or_dies(make: Make) -> None:
    with whole_model.begun("tiny", "float32", 0, DEV, module=CHILD) as child:
        child.tell({whole_model.PLAN: ["tiny", "float32"]})
        (check,) = model(child=child).checks([make("float32")], timeout_s=PATIENCE_S)
    assert check.passed is True, check.reason
    waiting = isolated.IsolatedProcess(CHILD, dev=DEV, label="model")
    pid = waiting._process.pid
    waiting.close()
    waiting.close()
    assert not Path(f"/proc/{pid}").exists()
