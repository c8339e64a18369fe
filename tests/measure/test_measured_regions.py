"""A region of several kernels is compiled, checked, timed and verified as one kernel is, and what is wrong is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from tinygrad import Tensor

from kcg.errors import VerificationError
from kcg.kernel.composed import Part, schedule_of_parts
from kcg.kernel.kinds import compile_region
from kcg.kernel.opts.schedule import RAW
from kcg.kernel.parts import KIND as PARTS
from kcg.kernel.program import Program, ProgramLaunch, Scratch
from kcg.measure.inputs import TIMED_SEED
from kcg.measure.jobs import PairedJob
from kcg.measure.pools import ChildDied, ServiceClosed
from kcg.measure.service import MeasureService, Request, paired_rows
from kcg.measure.verify import (
    FINAL_SEEDS,
    CheckedBench,
    Referee,
    Reference,
    References,
    first_references_job,
    references_job,
)
from kcg.types import CacheState, Measurement, Region, Schedule, ScheduleKind, Status
from tests.chains import X86, program_of, region_of
from tests.kernels import empty
from tests.slow import every
from tests.waiting import PATIENCE_S

DEV = "CPU:X86"
ROWS, WIDTH = 16, 48
DTYPES = ("float32", "float16")

MODELS: dict[str, Callable[[Tensor], Tensor]] = {
    "layernorm": lambda x: x.layernorm().contiguous(),
    "softmax": lambda x: x.softmax().contiguous(),
}
"""Of each three kernels: buffer 1 is the input, 0 and 2 hold a value for each row, 3 is the output."""


def without_one_term(x: Tensor) -> Tensor:
    """The softmax whose sum leaves out a term."""
    powers = (x.float() - x.float().max(1, keepdim=True)).exp()
    return (powers / powers[:, 1:].sum(1, keepdim=True)).cast(x.dtype)


def mean_without_one(x: Tensor) -> Tensor:
    """The norm whose mean leaves out a term."""
    values = x.float()
    centred = values - values[:, 1:].sum(1, keepdim=True) / WIDTH
    return (centred * (centred.square().mean(1, keepdim=True) + 1e-5).rsqrt()).cast(x.dtype)


DROPPED = {"layernorm": mean_without_one, "softmax": without_one_term}


@cache
def region(model: str, dtype: str) -> Region:
    made = region_of(MODELS[model](empty(ROWS, WIDTH, dtype=dtype)))
    assert made.args == ((0, 1), (2, 1, 0), (3, 1, 0, 2)) and made.outputs == (3,)
    return made


@cache
def parts(model: str, dtype: str) -> Program:
    of = region(model, dtype)
    compiled = compile_region(of, PARTS.space(of, X86).baseline(), X86)
    assert isinstance(compiled, Program)
    return compiled


def moved(program: Program, to: dict[int, int], places: tuple[int, ...], *scratch: Scratch) -> Program:
    """The program in which some launches take other buffers."""
    launches = [
        ProgramLaunch(one.compiled, tuple(to.get(n, n) if place in places else n for n in one.args))
        for place, one in enumerate(program.launches)
    ]
    return Program(tuple(launches), program.buffers, scratch)


def built(model: str, dtype: str, build: Callable[[Tensor], Tensor]) -> Program:
    x = empty(ROWS, WIDTH, dtype=dtype)
    return program_of(region(model, dtype), {1: x}, lambda x: {3: build(x).contiguous()})


def fused(model: str, dtype: str) -> Program:
    """What stores no intermediate of the region, in float32."""
    return built(model, dtype, lambda x: MODELS[model](x.float()).cast(x.dtype))


def of_the_type(dtype: str) -> str:
    return {"float32": "float", "float16": "half"}[dtype]


WRONG: dict[str, Callable[[str, str], Program]] = {
    "an intermediate is not written": lambda m, d: moved(
        parts(m, d), {0: 4}, (0,), Scratch(ROWS, of_the_type(d))
    ),
    "a launch is left out": lambda m, d: Program((parts(m, d).launches[0], parts(m, d).launches[2]), 4),
    "the last launch is left out": lambda m, d: Program(parts(m, d).launches[:2], 4),
    "launches in another order": lambda m, d: Program(tuple(parts(m, d).launches[i] for i in (1, 0, 2)), 4),
    "a term of a sum is left out": lambda m, d: built(m, d, DROPPED[m]),
    "an output of zeros": lambda m, d: built(m, d, lambda x: (x != x).cast(x.dtype)),
    "beyond its workspace": lambda m, d: moved(
        parts(m, d), {0: 4}, (0, 1, 2), Scratch(ROWS - 1, of_the_type(d))
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def service() -> Iterator[MeasureService]:
    with MeasureService(DEV, run_id="run-1", compile_workers=2) as opened:
        yield opened


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("model", every(2, MODELS))
def test_right_programs_pass_every_rule(model: str, dtype: str) -> None:
    bench = CheckedBench(region(model, dtype), X86)
    shifted = moved(parts(model, dtype), {0: 4}, (0, 1, 2), Scratch(ROWS, of_the_type(dtype)))
    programs = [parts(model, dtype), fused(model, dtype), shifted]
    results = bench.check_all([bench.launcher(one) for one in programs], (), seeds=FINAL_SEEDS, thorough=True)
    for result in results:
        assert result.passed, result.reason
        assert result.seeds == 3 and {"inputs unchanged", "guard bytes", "10 runs bitwise equal"} <= set(result.rules)


@pytest.mark.parametrize("dtype", every(4, DTYPES))
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("what", WRONG)
def test_wrong_programs_are_found_in_a_search(what: str, model: str, dtype: str) -> None:
    bench = CheckedBench(region(model, dtype), X86)
    result = bench.check(bench.launcher(WRONG[what](model, dtype)), (), seeds=(0,))
    assert result.wrong and "\n" not in result.reason
    assert bench.tainted == (what == "beyond its workspace")
    assert ("wrote outside buffer 4" in result.reason) == bench.tainted
    assert bench.tainted or bench.check(bench.launcher(parts(model, dtype)), (), seeds=(0,)).passed


def test_a_whole_output_is_compared_with_the_first_programs() -> None:
    """One element that no sample looks at, in an output of several kernels."""
    of = region_of(MODELS["layernorm"](empty(64, 48)))
    bench = CheckedBench(of, X86)
    right = bench.launcher(compile_region(of, PARTS.space(of, X86).baseline(), X86))
    points = [bench.chain.sample_points(96, np.random.default_rng(seed), {})[0] for seed in (0, *FINAL_SEEDS)]
    seen = {int(48 * p[0] + p[1]) for p in np.concatenate(points)}
    element = next(i for i in range(1000, 64 * 48) if i not in seen)

    def spoiled() -> float:
        seconds = right()
        values = bench.read(3).view(np.float32).copy()
        values[element] *= np.float32(1.001)
        bench._write(bench._views[3], values)
        return seconds

    assert bench.check(spoiled, (), seeds=FINAL_SEEDS).passed, "samples alone do not see it"
    first, second = bench.check_all([right, spoiled], (), seeds=FINAL_SEEDS, thorough=True)
    assert first.passed and second.wrong and f"element {element} of buffer 3" in second.reason


def test_an_input_that_is_changed_is_seen() -> None:
    """The last launch writes 0 over the input, which is the same in every run."""
    of = region("layernorm", "float32")
    bench, launches = CheckedBench(of, X86), parts("layernorm", "float32").launches
    zeros = built("layernorm", "float32", lambda x: x * 0 + 1).launches[0].compiled
    program = Program((*launches, ProgramLaunch(zeros, (1,) * len(zeros.slots))), 4)
    right = bench.launcher(Program(launches, 4))
    assert bench.check(right, (), seeds=(0,)).passed
    run = bench.launcher(program)

    def once() -> float:
        """The second run finds the input changed; here it is put back before each."""
        bench.restore_inputs()
        return run()

    result = bench.check(once, (), seeds=(0,))
    assert result.wrong and "changed its input in buffer 1" in result.reason


# ---- through the service


def measured(service: MeasureService, request: Request, program: Program | None = None) -> Measurement:
    if program is not None:
        return service.measure_compiled(request, program).result(timeout=PATIENCE_S)
    (future,) = service.measure([request])
    return future.result(timeout=PATIENCE_S)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_a_region_is_measured_as_its_parts(service: MeasureService, model: str) -> None:
    of = region(model, "float32")
    space = PARTS.space(of, service.target)
    row = measured(service, Request(of, space.baseline(), in_search=True, sampler="baseline"))
    assert row.status is Status.OK and row.checked and row.early_stop and len(row.samples_s) >= 3
    assert (row.region_id, row.schedule, row.launch) == (of.id, space.baseline(), ((), ()))
    timed = service.binaries_timed
    again = measured(service, Request(of, space.baseline(), in_search=True))
    assert again.samples_s == row.samples_s and service.binaries_timed == timed, "an equal program is timed once"
    other = space.actions(space.baseline())[0].schedule
    row = measured(service, Request(of, other, cache_state=CacheState.WARM, samples=3))
    assert row.status is Status.OK and row.cache_state is CacheState.WARM and row.binary_hash != again.binary_hash


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_has_that_status_and_the_next_is_measured(service: MeasureService, what: str) -> None:
    of = region("softmax", "float32")
    request = Request(of, PARTS.space(of, service.target).baseline(), samples=3, trial=1 + list(WRONG).index(what))
    row = measured(service, request, WRONG[what]("softmax", "float32"))
    assert row.status is Status.WRONG and row.reason and not row.samples_s
    assert measured(service, request).status is Status.OK


def test_a_schedule_that_is_not_of_the_region_does_not_compile(service: MeasureService) -> None:
    of = region("softmax", "float32")
    backwards = schedule_of_parts(Part((place,), RAW) for place in (2, 1, 0))
    row = measured(service, Request(of, backwards))
    assert row.status is Status.COMPILE_ERROR and "which it depends on" in row.reason
    row = measured(service, Request(of, Schedule(ScheduleKind.PARTS, "[]")))
    assert row.status is Status.COMPILE_ERROR and "a list of" in row.reason


def test_a_finalist_is_timed_in_turns_with_the_parts(service: MeasureService) -> None:
    of = region("layernorm", "float16")
    schedule = PARTS.space(of, service.target).baseline()
    baseline = service.compiled(of, schedule).result(timeout=PATIENCE_S).compiled
    finalist = fused("layernorm", "float16")
    service.fresh_child()
    references = service.beside(references_job, of, (), FINAL_SEEDS, timeout_s=PATIENCE_S).result(timeout=PATIENCE_S)
    job = PairedJob(of, baseline, finalist, service.target, references=references)
    outcome = service.compare_paired(job, timeout_s=PATIENCE_S).result(timeout=PATIENCE_S)
    assert outcome.baseline_verification.passed, outcome.baseline_verification.reason
    assert outcome.finalist_verification is not None and outcome.finalist_verification.passed
    assert len(outcome.baseline_cold_s) == len(outcome.finalist_cold_s) == len(outcome.again_cold_s) > 0
    rows = paired_rows(job, outcome, schedule, schedule, toolchain=lambda _: "t", run_id="r")
    assert [(row.trial, str(row.cache_state)) for row in rows] == [
        (1, "cold"), (2, "cold"), (1, "warm"), (1, "cold"), (1, "warm"),
    ]  # fmt: skip
    assert {row.region_id for row in rows} == {of.id} and rows[0].binary_hash == baseline.binary_hash
    wrong = PairedJob(of, baseline, WRONG["a term of a sum is left out"]("layernorm", "float16"), service.target)
    outcome = service.compare_paired(wrong, timeout_s=PATIENCE_S).result(timeout=PATIENCE_S)
    assert outcome.baseline_verification.passed and outcome.finalist_verification is not None
    assert outcome.finalist_verification.wrong and not outcome.baseline_cold_s


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TimeoutError("no result within 120 s"), "its reference takes more than 120 s"),
        (VerificationError("a point takes too long"), "a point takes too long"),
    ],
)
def test_what_has_no_reference_beside_the_device_is_not_looked_for_on_it(
    service: MeasureService, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    of, failed = region("softmax", "float32"), Future[References]()
    failed.set_exception(error)
    monkeypatch.setitem(service._references, (of.id, ()), failed)
    timed = service.binaries_timed
    row = measured(service, Request(of, PARTS.space(of, service.target).baseline(), in_search=True, trial=99))
    assert (row.status, row.reason, row.binary_hash != "") == (Status.UNJUDGED, reason, True)
    assert service.binaries_timed == timed, "it is not sent to the device"


def test_the_reference_of_a_search_comes_from_a_process_beside_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a region, whatever is measured of it; single kernels' are computed where they are checked."""
    of, alone = region("layernorm", "float32"), Region((region("layernorm", "float32").kernels[0],))
    sent: list[Region] = []
    beside = MeasureService.beside

    def counted(self: MeasureService, function: Callable[..., object], *args: object, timeout_s: float) -> object:
        if function is first_references_job:
            sent.append(args[0])  # type: ignore[arg-type]
        return beside(self, function, *args, timeout_s=timeout_s)

    monkeypatch.setattr(MeasureService, "beside", counted)
    with MeasureService(DEV, run_id="test") as service:
        space = PARTS.space(of, service.target)
        schedules = [space.baseline(), space.actions(space.baseline())[0].schedule]
        rows = [measured(service, Request(of, schedule, in_search=True)) for schedule in schedules]
        rows += [measured(service, Request(alone, RAW, in_search=True))]
        job = service._time_job(Request(of, schedules[0]), parts("layernorm", "float32"))
    assert [row.status for row in rows] == [Status.OK] * 3
    assert sent == [of]
    assert job.references is not None and job.references.recipes == (rows[0].input_recipe.split(":")[0],)


def test_references_that_take_long_come_from_several_processes(
    service: MeasureService, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, asked = region("softmax", "float32"), list[object]()
    beside = MeasureService.beside

    def counted(
        self: MeasureService, function: Callable[..., object], *args: object, timeout_s: float, patient: bool = False
    ) -> object:
        asked.append(args[4] if function is references_job and len(args) > 4 else None)
        return beside(self, function, *args, timeout_s=timeout_s, patient=patient)

    monkeypatch.setattr(MeasureService, "beside", counted)
    monkeypatch.setattr(service, "compile_workers", 8)
    monkeypatch.setattr("kcg.measure.service.APART_S", 0.0)
    monkeypatch.setattr(service, "_references_beside", True)
    service._references.pop((of.id, ()), None)
    service.begin_references(of, ())
    found = service.references(of, (), FINAL_SEEDS).result(timeout=PATIENCE_S)
    assert asked == [None, 0, 1, 2, 3] and found.plantings is not None and all(found.recipes)


@pytest.mark.slow
def test_references_of_all_seeds_take_over_those_of_the_first_check(service: MeasureService) -> None:
    """They are those that would be computed without it, and wait for it where it is under way."""
    of = region("softmax", "float16")
    first = first_references_job(of, ())
    whole, following = (references_job(of, (), FINAL_SEEDS, known) for known in (None, first))
    assert following.recipes == whole.recipes and following.seconds > first.seconds > 0
    for (key, one), (again, other) in zip(following.references, whole.references, strict=True):
        assert key == again
        for a, b in zip(one.stores, other.stores, strict=True):
            assert np.array_equal(a.values, b.values, equal_nan=True) and np.array_equal(a.error, b.error)

    under_way = Future[References]()
    service._references[of.id, ()] = under_way
    try:
        asked = service.references(of, (), FINAL_SEEDS)
        assert not asked.done()
        under_way.set_result(replace(first, seconds=1000.0))
        assert asked.result(timeout=PATIENCE_S).seconds > 1000.0
        service._references[of.id, ()] = failed = Future[References]()
        failed.set_exception(ChildDied("its process died of SIGSEGV"))
        assert service.references(of, (), FINAL_SEEDS).result(timeout=PATIENCE_S).recipes == whole.recipes
        service._references[of.id, ()] = none = Future[References]()
        none.set_exception(VerificationError("not floating"))
        assert isinstance(service.references(of, (), FINAL_SEEDS).exception(timeout=0), VerificationError)
    finally:
        del service._references[of.id, ()]


def test_references_that_wait_for_the_first_end_with_the_service() -> None:
    of, under_way = region("softmax", "float16"), Future[References]()
    with MeasureService(DEV, run_id="test") as service:
        service._references[of.id, ()] = under_way
        asked = service.references(of, (), FINAL_SEEDS)
    under_way.set_exception(ServiceClosed())
    assert isinstance(asked.exception(timeout=PATIENCE_S), ServiceClosed)


def test_a_known_reference_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    of, keys = region("softmax", "float16"), list[tuple[int, str]]()
    first = first_references_job(of, ())
    evaluate = Referee._evaluate

    def counted(self: Referee, inputs: Any, seed: int, count: int, variables: Any, *, enough: int = 0) -> Reference:
        keys.append((seed, "probe" if enough else self.recipe))
        return evaluate(self, inputs, seed, count, variables, enough=enough)

    monkeypatch.setattr(Referee, "_evaluate", counted)
    references_job(of, (), FINAL_SEEDS, first)
    assert (TIMED_SEED, first.recipes[0]) not in keys and (FINAL_SEEDS[0], first.recipes[0]) in keys
