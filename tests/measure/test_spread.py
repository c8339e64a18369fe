"""One driver, several devices: who measures what, what is lost where one goes, and who may measure at all."""

from __future__ import annotations

import operator
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace

import pytest

from kcg.errors import DeviceError
from kcg.kernel.opts.space import KernelSpace
from kcg.measure import spread as spread_module
from kcg.measure.service import MeasureService, Request
from kcg.measure.spread import AGREED, PREPARED, Spread
from kcg.types import Measurement, Region, Schedule, Status, Target, Toolchain
from tests.kernels import example_region
from tests.known_targets import KNOWN_TARGETS
from tests.waiting import PATIENCE_S

DEV = "CPU:X86"
KERNELS = tuple(example_region(name) for name in ("matmul_f32", "softmax.0", "softmax.1"))
TARGET = KNOWN_TARGETS["sm_90"]
TOOLCHAIN = Toolchain(tinygrad="0.14.0", compiler="NVRTC 12.9", driver="580", triton="", action_space=1, assembler="")


# ---- two services of one CPU: as it is with two GPUs, but for the times


@pytest.fixture(scope="module")
def first() -> Iterator[MeasureService]:
    with MeasureService(DEV, run_id="first", compile_workers=2) as service:
        yield service


@pytest.fixture
def second(first: MeasureService) -> Iterator[MeasureService]:
    with MeasureService(DEV, run_id="second", gpu="7", compilers_of=first) as service:
        yield service


def drawn(region: Region, target: Target, count: int) -> list[Schedule]:
    """So many schedules near tinygrad's own."""
    space = KernelSpace(region, target)
    near = [step.schedule for step in space.actions(space.start())]
    return list(dict.fromkeys([space.baseline(), space.start(), *near]))[:count]


def rows_of(futures: Sequence[Future[Measurement]]) -> list[Measurement]:
    return [future.result(timeout=PATIENCE_S) for future in futures]


def test_each_service_has_its_gpu_and_all_have_the_compilers_of_one(
    first: MeasureService, second: MeasureService
) -> None:
    def shown(service: MeasureService) -> str | None:
        found: str | None = service._device.submit(os.getenv, "CUDA_VISIBLE_DEVICES", timeout_s=PATIENCE_S).result(
            timeout=PATIENCE_S
        )
        return found

    assert (shown(first), shown(second)) == (os.environ.get("CUDA_VISIBLE_DEVICES"), "7")
    assert second._compilers is first._compilers and second.compile_workers == first.compile_workers == 2
    schedule = drawn(KERNELS[0], first.target, 1)[0]
    second.compiled(KERNELS[0], schedule).result(timeout=PATIENCE_S)
    assert first.has_compiled(KERNELS[0], schedule), "what one compiled is not compiled again to be judged"


@pytest.mark.slow
def test_a_device_that_is_lost_loses_no_row(first: MeasureService, second: MeasureService) -> None:
    """Three kernels' batches on two services; the second's child dies, and none that follows it is to be trusted."""
    first._by_binary.clear()
    lines, rows, lost = list[str](), list[Measurement](), threading.Event()
    spread = Spread(first, report=lines.append, warn=lines.append)
    spread.add(second, "GPU 1")

    def listen(row: Measurement) -> None:
        rows.append(row)
        if row.run_id == "second" and not lost.is_set():  # in the device's thread: before its next job is sent
            lost.set()
            assert second._device._child is not None
            second._device._canary_job = operator.index  # type: ignore[assignment]  # raises, whatever it is given
            os.kill(second._device._child, signal.SIGKILL)

    spread.on_measurement = listen
    asked = [
        [Request(region, schedule, in_search=True) for schedule in drawn(region, first.target, 6)] for region in KERNELS
    ]
    sent = [spread.measure(batch, together=True) for batch in asked]
    answers = [row for futures in sent for row in rows_of(futures)]

    wanted = [(request.region.id, request.schedule) for batch in asked for request in batch]
    assert [(row.region_id, row.schedule) for row in answers] == wanted
    assert Counter((row.region_id, row.schedule) for row in rows) == Counter(wanted), "each row once"
    assert Counter(map(id, rows)) == Counter(map(id, answers)), "what was recorded is what was answered"
    assert lost.is_set() and Counter(row.status for row in rows).keys() <= {Status.OK, Status.COMPILE_ERROR}
    assert {row.run_id for row in rows} == {"first", "second"}
    assert spread.size == 1 and lines == [f"GPU 1 is left out, and the others go on: {second.device_error}"]
    assert spread.spent_s["compile"] == first.spent_s["compile"] + second.spent_s["compile"] > 0
    assert spread.compilations > len(wanted), "what was lost was compiled again"


def test_a_binary_is_timed_once_whoever_timed_it(
    first: MeasureService, second: MeasureService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spread_module, "AGREED", float("inf"))  # a CPU's times say nothing here
    first._by_binary.clear()
    lines, seen = list[str](), list[Measurement]()
    spread = Spread(first, report=lines.append, warn=lines.append)
    request = Request(KERNELS[0], drawn(KERNELS[0], first.target, 1)[0], in_search=True)
    (before,) = rows_of(spread.measure([request]))

    spread.check(second, "GPU 1", [replace(request, sampler="gpu-check", trial=3)], seen=seen.append)
    spread._checks[0].join(PATIENCE_S)
    assert [row.run_id for row in seen] == ["first", "second"] and spread.size == 2
    assert len(lines) == 1 and lines[0].startswith("GPU 1 measures too: ")

    timed = second.binaries_timed
    (shared,) = rows_of(second.measure([request]))
    assert second.binaries_timed == timed and shared.samples_s == before.samples_s
    assert shared.run_id == before.run_id == "first", "the row says who measured it"


# ---- services that answer when they are told to


class ByHand:
    """A service whose answers are given by the test; in a check by `timed`, at once."""

    devices = 1

    def __init__(self, run_id: str, *, facts: tuple[Target, Toolchain] = (TARGET, TOOLCHAIN)) -> None:
        self.run_id, (self.target, self.toolchain) = run_id, facts
        self.device_error: DeviceError | None = None
        self.spent_s: Counter[str] = Counter()
        self.timed: Callable[[Request], Measurement] | None = None
        self.asked: list[tuple[Request, Future[Measurement]]] = []
        self.remembered: list[Measurement] = []
        self.closed = False

    def measure(self, requests: Sequence[Request], *, together: bool = False) -> list[Future[Measurement]]:
        futures: list[Future[Measurement]] = [Future() for _ in requests]
        for request, future in zip(requests, futures, strict=True):
            if self.timed is not None:
                future.set_result(self.timed(request))
            else:
                self.asked.append((request, future))
        return futures

    def remember(self, row: Measurement) -> None:
        self.remembered.append(row)

    def close(self) -> None:
        self.closed = True

    def answer(self, status: Status = Status.OK, *, most: int | None = None) -> None:
        now, self.asked = self.asked[:most], self.asked[len(self.asked) if most is None else most :]
        for request, future in now:
            future.set_result(row_of(self, request, status))


def row_of(member: ByHand, request: Request, status: Status = Status.OK, seconds: float = 1e-3) -> Measurement:
    return Measurement(
        request.region.id,
        request.schedule,
        TARGET.fingerprint,
        TOOLCHAIN.fingerprint,
        1,
        status,
        samples_s=(seconds,) if status == Status.OK else (),
        reason="" if status == Status.OK else "its process died",
        sampler=request.sampler,
        run_id=member.run_id,
    )


def batch(region: Region, count: int) -> list[Request]:
    return [Request(region, schedule) for schedule in drawn(region, TARGET, count)]


@pytest.fixture
def pair() -> tuple[Spread, ByHand, ByHand]:
    one, two = ByHand("one"), ByHand("two")
    spread = Spread(one)
    spread.add(two, "GPU 1")
    return spread, one, two


def test_a_kernel_stays_where_its_inputs_are_until_another_has_much_less_to_do(
    pair: tuple[Spread, ByHand, ByHand],
) -> None:
    spread, one, two = pair
    a, b, c = KERNELS

    def asked() -> tuple[int, int]:
        return len(one.asked), len(two.asked)

    spread.measure(batch(a, 4), together=True)
    assert asked() == (4, 0)
    spread.measure(batch(b, 4), together=True)
    assert asked() == (4, 4), "who has the least to do"
    spread.measure(batch(b, PREPARED - 1), together=True)
    assert asked() == (4, 3 + PREPARED), "who holds the inputs"
    spread.measure(batch(b, 1), together=True)
    assert asked() == (4, 4 + PREPARED), "though it has more to do"
    spread.measure(batch(b, 1), together=True)
    assert asked() == (5, 4 + PREPARED), "but not as much more as preparing them is"
    one.answer()
    two.answer()
    spread.measure([*batch(a, 3), *batch(c, 2)])
    assert asked() == (3, 2), "of several kernels each goes its way"
    spread.measure([*batch(a, 3), *batch(c, 2)], together=True)
    assert asked() == (8, 2), "but together where that is wanted"


def test_one_service_gets_all_at_once() -> None:
    """On a CPU no sample is taken before the last of what is asked for at once is compiled."""
    calls, one = list[int](), ByHand("one")
    measure = one.measure
    one.measure = lambda requests, **how: (calls.append(len(requests)), measure(requests, **how))[1]  # type: ignore[method-assign]
    Spread(one).measure([*batch(KERNELS[0], 2), *batch(KERNELS[1], 3)])
    assert calls == [5]


def test_where_the_first_is_lost_the_run_ends(pair: tuple[Spread, ByHand, ByHand]) -> None:
    spread, one, two = pair
    recorded = list[Measurement]()
    spread.on_measurement = recorded.append
    futures = spread.measure(batch(KERNELS[0], 3))
    one.answer(most=1)
    one.device_error = DeviceError("it is gone")
    one.answer(Status.WORKER_DIED)
    assert [future.result(0).status for future in futures] == [Status.OK, Status.WORKER_DIED, Status.WORKER_DIED]
    assert recorded == [futures[0].result()] and two.asked == [], "what could not run is no row"


def test_a_crash_of_a_kernel_is_a_row_and_no_loss(pair: tuple[Spread, ByHand, ByHand]) -> None:
    spread, one, two = pair
    recorded = list[Measurement]()
    spread.on_measurement = recorded.append
    futures = spread.measure(batch(KERNELS[0], 2))
    one.answer(Status.WORKER_DIED)
    assert [future.result(0) for future in futures] == recorded and len(recorded) == 2 == spread.size
    spread.close()
    assert one.closed and two.closed


def timed(member: ByHand, seconds: float) -> None:
    member.timed = lambda request: row_of(member, request, seconds=seconds)


def checked(other: ByHand, *, seconds: float | None = None) -> tuple[Spread, str]:
    """After another service was compared with one that takes a millisecond; the line about it."""
    one, lines = ByHand("one"), list[str]()
    timed(one, 1e-3)
    if seconds is not None:
        timed(other, seconds)
    spread = Spread(one, report=lines.append, warn=lines.append)
    spread.check(other, "GPU 1", [batch(region, 1)[0] for region in KERNELS])
    spread._checks[0].join(PATIENCE_S)
    (line,) = lines
    return spread, line


@pytest.mark.parametrize("ratio", [1 + AGREED / 2, 1 / (1 + AGREED / 2)])
def test_a_gpu_that_agrees_measures_too(ratio: float) -> None:
    other = ByHand("two")
    spread, line = checked(other, seconds=ratio * 1e-3)
    assert line == (f"GPU 1 measures too: it takes {ratio:.3f} times as long as the first, in the median of 3 kernels")
    assert spread.size == 2 and not other.closed
    (lent,) = spread.measure(batch(KERNELS[0], 1))
    spread.measure(batch(KERNELS[1], 1))
    assert lent.result(0).run_id == "one"


@pytest.mark.parametrize("ratio", [1 + 2 * AGREED, 1 / (1 + 2 * AGREED)])
def test_a_gpu_of_another_speed_is_left_out(ratio: float) -> None:
    other = ByHand("two")
    spread, line = checked(other, seconds=ratio * 1e-3)
    assert line.startswith(f"GPU 1 is left out: it takes {ratio:.3f} times as long") and line.endswith("off by 3%")
    assert spread.size == 1 and other.closed


def test_a_gpu_that_is_another_or_fails_is_left_out() -> None:
    model = ByHand("two", facts=(KNOWN_TARGETS["sm_80"], TOOLCHAIN))
    assert f"left out: it is {KNOWN_TARGETS['sm_80'].model}, and the first is {TARGET.model}" in checked(model)[1]
    capped = ByHand("two", facts=(replace(TARGET, power_limit_w=300.0), TOOLCHAIN))
    assert "left out: it is set up in another way" in checked(capped)[1]
    driver = ByHand("two", facts=(TARGET, replace(TOOLCHAIN, driver="570")))
    assert "left out: its compiler or driver is not that of the first" in checked(driver)[1]

    wrong = ByHand("two")
    wrong.timed = lambda request: replace(row_of(wrong, request, Status.WRONG), reason="all is NaN")
    assert "left out: a kernel that runs on the first is wrong on it: all is NaN" in checked(wrong)[1]

    class Absent(ByHand):
        @property
        def target(self) -> Target:  # type: ignore[override]
            raise DeviceError("CUDA does not open: out of memory")

        @target.setter
        def target(self, value: Target) -> None: ...

    assert checked(Absent("two"))[1] == "GPU 1 is left out: CUDA does not open: out of memory"


def test_a_service_that_comes_later_knows_what_was_timed() -> None:
    one, two = ByHand("one"), ByHand("two")
    spread = Spread(one)
    (future,) = spread.measure(batch(KERNELS[0], 1))
    (request, asked), one.asked = one.asked[0], []
    asked.set_result(replace(row_of(one, request), binary_hash="ab" * 32))
    earlier = replace(future.result(0), run_id="of an earlier run")
    spread.remember(earlier)
    spread.add(two, "GPU 1")
    assert two.remembered == [future.result(0), earlier] and one.remembered == [earlier]
