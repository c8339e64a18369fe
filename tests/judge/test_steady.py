"""Replays of the fastest plan's step give the same, bit for bit, or the plan is refused and the program named."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tinygrad.runtime.ops_cpu import CPUProgram

from kcg.compat.captures import Value
from kcg.compat.tiny import Buffer, dtypes
from kcg.judge import steady as steadiness
from kcg.judge import step as steps
from kcg.judge import whole_model
from kcg.judge.steady import Seen, Stress, steady
from kcg.judge.step import OWN_STEADY, STEADY, Stage, compare
from kcg.judge.whole_model import Model
from kcg.kernel.kinds import ACTION_SPACE_VERSION
from kcg.kernel.opts.space import KernelSpace
from kcg.measure import isolated
from kcg.measure.device_info import detect
from kcg.nouns import noun_to_json
from kcg.optimize.console import _model_line
from kcg.types import Finalist, ModelCheck, RegionResult, Result, Target, Verification, Workload
from tests.sample_result import sample_result
from tests.tiny_models import TINY, UNSTEADY, disturbed
from tests.waiting import PATIENCE_S

DEV = os.environ["DEV"]
CHILD = "tests.tiny_models"
KERNELS = 4
SECONDS = 0.3
LAUNCHES = 6  # of a plan while it is compared: it is captured, and five replays are timed


@pytest.fixture(scope="module")
def result() -> Result:
    """One of the tiny model, every kernel with another schedule than tinygrad's, of another name."""
    target, toolchain = detect(DEV, ACTION_SPACE_VERSION)
    rows = []
    for call in TINY.capture("float32").calls:
        space = KernelSpace(call.region, target)
        own = space.baseline()
        other = next(a.schedule for a in space.actions(space.start()) if space.name(a.schedule) != space.name(own))
        base, ours = (
            Finalist(one, 2e-6, 1e-6, (1e-6, 3e-6), Verification(True), name=space.name(one)) for one in (own, other)
        )
        rows.append(RegionResult(call.region, call.calls, base, ours, 1, "improved"))
    sample = replace(sample_result(), workload="tiny", preset="float32", recomputes=(), expectations=())
    return replace(sample, target=target, toolchain=toolchain, regions=tuple(rows))


class Ticking:
    """A clock that a busy machine does not make faster: each look at it takes ten milliseconds."""

    def __init__(self) -> None:
        self._looks = itertools.count()

    def monotonic(self) -> float:
        return 0.01 * next(self._looks)


@pytest.fixture(autouse=True)
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steadiness, "time", Ticking())


def disturb(patch: pytest.MonkeyPatch, name: str, every: int, *, first: int = LAUNCHES) -> None:
    """Every so-manieth launch of a kernel is wrong, from its replays under stress on."""
    patch.setattr(CPUProgram, "__call__", disturbed(CPUProgram.__call__, name, every, first=first))


def checked(*results: Result, seconds: float = SECONDS, **of: Any) -> list[ModelCheck]:
    step = TINY.runnable("float32", 3)  # type: ignore[misc]
    return compare(step, results, seed=3, stress=Stress(seconds, **of))


# ---- the model, in this process


def test_a_right_plan_gives_the_same_in_every_replay(result: Result) -> None:
    before: list[list[ModelCheck]] = []
    (check,) = checked(result, compared=before.append)
    assert check.passed and check.steady > steadiness.ALL_LOOKED_AT_EVERY, check
    assert before == [[replace(check, steady=0)]], "what was compared is told before"


@pytest.mark.parametrize("place", [0, KERNELS - 1])
def test_a_program_that_is_wrong_at_times_is_found_and_named(
    result: Result, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = result.regions[place].chosen.name
    disturb(monkeypatch, name, 8)
    (check,) = checked(result, seconds=PATIENCE_S)
    assert check.passed is False, check
    # two launches come before the first on these inputs, and one of the other inputs after it
    assert check.reason == (
        f"the step gave another output in replay 5 with the same inputs; the first value that differs is of {name}"
    )


def test_what_is_not_seen_again_has_no_name(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    disturb(monkeypatch, result.regions[0].chosen.name, 10**6, first=LAUNCHES + 8 - 10**6)
    before: list[list[ModelCheck]] = []
    (check,) = checked(result, seconds=PATIENCE_S, compared=before.append)
    assert check.passed is False
    assert [one.passed for (one,) in before] == [True, False], "it fails whatever becomes of the search for the program"
    assert check.reason == (
        "the step gave another output in replay 5 with the same inputs; which program it is was not seen again"
    )


def test_where_tinygrads_own_differ_too_nothing_is_said(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    last = result.regions[-1]
    disturb(monkeypatch, last.chosen.name, 8)
    disturb(monkeypatch, last.baseline.name, 8)
    (check,) = checked(result, seconds=PATIENCE_S)
    assert check.passed and check.steady == 0 and check.unsteady == steadiness.OWN_DIFFERS, check


def test_a_step_that_does_not_repeat_itself_is_not_replayed(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rounding unit of the own output is no failure, and says that there is nothing to compare bit for bit."""
    disturb(monkeypatch, result.regions[-1].baseline.name, 4, first=0)
    (check,) = checked(result, seconds=PATIENCE_S)
    assert check.passed and (check.steady, check.unsteady) == (0, steps.TWICE), check


def test_the_next_plan_is_replayed_where_the_fastest_is_wrong(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one keeps tinygrad's own schedule of what is wrong."""
    first, *rest = result.regions
    other = replace(result, regions=(replace(first, chosen=first.baseline, outcome="kept"), *rest))
    disturb(monkeypatch, first.chosen.name, 8)
    step, stages = TINY.runnable("float32", 3), list[Stage]()  # type: ignore[misc]
    monkeypatch.setattr(steps, "median", lambda seconds: 1.0)  # the first is as fast as the second
    bad, good = compare(step, [result, other], seed=3, stress=Stress(1.0), report=stages.append)
    assert bad.passed is False and good.passed and good.steady > 0, (bad, good)
    assert Stage(STEADY, 0) in stages and Stage(STEADY, 1) in stages and Stage(OWN_STEADY) in stages


@pytest.mark.parametrize("free", [1, 10_000])
def test_where_memory_is_short_outputs_alone_are_compared(
    result: Result, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    """Whether both programs are in memory at once or not."""
    made: list[steps._Program] = []
    captured = steps._Captures.apart
    monkeypatch.setattr(steps._Captures, "apart", lambda *a: made.append(captured(*a)))  # type: ignore[arg-type]
    monkeypatch.setattr("kcg.compat.hardware.memory_of", lambda device: (free, 1 << 30))
    monkeypatch.setattr("kcg.compat.captures.CapturedOnce.nbytes", 1 << 20)
    (check,) = checked(result)
    assert check.passed and check.steady > steadiness.ALL_LOOKED_AT_EVERY and made == [None] * len(made), check
    assert ("in turns" in check.clock) is (free > 1)


def test_no_time_is_no_replay(result: Result) -> None:
    (check,) = checked(result, until=0.0)
    assert check.passed and check.steady == 0


# ---- any captured step


@dataclass
class Steps:
    """A step of two values, which are its input in every replay but those that are said."""

    target: Target
    wrong: Callable[[int], Sequence[int]]  # which values are wrong in a replay
    number: int = 0
    kept: list[Any] = field(default_factory=lambda: [Buffer("CPU", 4, dtypes.uint8).allocate() for _ in range(2)])

    def shared(self) -> Steps:
        return self

    def apart(self) -> Steps:
        return self

    def run(self, inputs: dict[str, Any]) -> list[Any]:
        self.number += 1
        for place, buffer in enumerate(self.kept):
            byte = inputs["x"] + (place in self.wrong(self.number))
            buffer.allocator._copyin(buffer._buf, memoryview(bytearray([byte] * 4)))
        return self.kept[1:]

    def values(self) -> list[Value]:
        return [Value(f"kernel_{place}", buffer) for place, buffer in enumerate(self.kept)]


def never(number: int) -> Sequence[int]:
    return ()


@pytest.mark.parametrize(
    ("plan", "own", "seen"),
    [
        (lambda n: (1,) if n == 8 else (), never, "another output in replay 5 .* which program it is was not seen"),
        (lambda n: (1,) if n % 8 == 0 else (), never, "another output in replay 5 .* is of kernel_1"),
        (lambda n: (0, 1) if n % 8 == 0 else (), never, "another output in replay 5 .* is of kernel_0"),
        (lambda n: (0,), never, ""),
        (lambda n: (0,) if n > 12 and n % 2 else (), never, "another value within in replay .* is of kernel_0"),
    ],
)
def test_the_first_value_that_differs_is_named(
    plan: Callable[[int], Sequence[int]], own: Callable[[int], Sequence[int]], seen: str
) -> None:
    target, _ = detect(DEV, ACTION_SPACE_VERSION)
    found = steady(
        Steps(target, plan), Steps(target, own), [{"x": 1}, {"x": 3}], target, stress=Stress(0.2 if not seen else 60.0)
    )
    assert re.match(f"the step gave {seen}", found.reason) if seen else not found.reason, found
    assert found.same > 0 and not found.own_differs


def test_values_that_differ_with_tinygrads_own_too_prove_nothing() -> None:
    target, _ = detect(DEV, ACTION_SPACE_VERSION)
    both = [Steps(target, lambda n: (0,) if n > 12 and n % 3 == 0 else ()) for _ in range(2)]
    assert steady(*both, [{"x": 1}, {"x": 3}], target, stress=Stress(60.0)) == Seen(0, own_differs=True)


# ---- in a child


def model(**of: Any) -> Model:
    return Model(Workload("tiny", "", ()), DEV, **{"module": CHILD, **of})


@pytest.mark.slow
def test_in_a_child_a_right_plan_is_replayed_for_its_time(result: Result) -> None:
    runner = model(steady_s=0.5)
    (check,) = runner.checks([result], timeout_s=PATIENCE_S)
    assert check.passed and check.steady > 0 and runner.replayed_s >= 0.5, check
    (off,) = model(steady_s=0.0).checks([result], timeout_s=PATIENCE_S)
    assert off.passed and off.steady == 0 and off.unsteady == ""
    (part,) = model(steady_s=0.5).checks([result], timeout_s=PATIENCE_S, rounds_s=0.0)
    assert part.passed and part.steady == 0, "of parts only where the whole was found to be unsteady"
    (late,) = model(steady_s=PATIENCE_S).checks([result], timeout_s=PATIENCE_S, rounds_s=0.1)
    assert late.passed and late.steady == 0, "comparing took all of what the budget left"


@pytest.mark.slow
def test_in_a_child_what_is_wrong_at_times_is_named(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    name = result.regions[0].chosen.name
    monkeypatch.setenv(UNSTEADY, f"{name}:8:{LAUNCHES}")
    runner = model(steady_s=PATIENCE_S)
    (check,) = runner.checks([result], timeout_s=PATIENCE_S)
    assert check.passed is False and check.reason.endswith(f"the first value that differs is of {name}"), check
    assert runner.unsteady


LINES = (json.dumps({"stage": STEADY, "result": 0}),)


@pytest.mark.parametrize(
    ("code", "own_code", "passed"), [(-6, 0, False), (1, 0, False), (-6, -6, True), (-9, 0, True), (None, 0, True)]
)
def test_what_was_compared_stands_unless_the_plan_is_to_blame_for_what_follows(
    result: Result, monkeypatch: pytest.MonkeyPatch, code: int | None, own_code: int, passed: bool
) -> None:
    compared = json.dumps([noun_to_json(ModelCheck(True, "", 0.0, 0.1))])

    class Process:
        """Ends as is said after all was compared."""

        def __init__(self, *of: Any, **named: Any) -> None: ...

        def __enter__(self) -> Process:
            return self

        def __exit__(self, *exc: object) -> None: ...

        def run(self, job: dict[str, Any], *, timeout_s: float, name: str) -> isolated.Ended:
            if job["own_only"]:
                return isolated.Ended(own_code, (), ())
            if code is None:
                raise isolated.Overdue("late", (compared, *LINES))
            return isolated.Ended(code, (compared, *LINES), ("it died",))

    monkeypatch.setattr(whole_model.isolated, "IsolatedProcess", Process)
    (check,) = model().checks([result], timeout_s=PATIENCE_S)
    assert check.passed is passed, check
    assert passed or check.reason.startswith("the model fails in a later replay with the chosen schedules: ")


# ---- what is said


def test_the_summary_says_how_many_replays_gave_the_same() -> None:
    check = ModelCheck(True, "", 1e-7, 1e-5, before_s=2e-3, after_s=1e-3, steady=212)
    assert _model_line(check, "whole model")[0].endswith("and 212 replays of the step gave the same, bit for bit")
    one = replace(check, steady=1)
    assert _model_line(one, "whole model")[0].endswith("and 1 replay of the step gave the same, bit for bit")
    assert _model_line(replace(check, steady=0, unsteady="it differs"), "whole model")[0].endswith("; it differs")
