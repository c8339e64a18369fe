"""Several programs of one capture, each on memory of its own."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from tinygrad import GlobalCounters, Tensor, dtypes
from tinygrad.uop.ops import UOp

from kcg.compat.capture import Standing
from kcg.compat.captures import CapturedOnce, memory_of_tensors, values_of, without_sharing
from kcg.compat.hardware import allocated_bytes
from kcg.compat.programs import captured_at_once


def _input(*values: float) -> Tensor:
    return Tensor([*values]).contiguous().realize()


def test_two_programs_of_one_capture_give_the_same_in_memory_of_their_own() -> None:
    weights = _input(1.0, 2.0, 3.0)

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        between = (x * weights).contiguous()
        return between + between.sum(), between

    x, other = _input(1.0, 1.0, 1.0), _input(0.0, 0.0, 1.0)
    once = CapturedOnce(run)
    first, second = once.program(), once.program()
    one, two = first(x=x), second(x=x)
    assert [t.tolist() for t in one] == [t.tolist() for t in two] == [[7.0, 8.0, 9.0], [1.0, 2.0, 3.0]]
    assert once.captures == 1
    first(x=other)
    assert one[0].tolist() == [3.0, 3.0, 6.0] and two[0].tolist() == [7.0, 8.0, 9.0], "what one writes is its own"
    assert second(x=other)[1].tolist() == [0.0, 0.0, 3.0]


def test_what_was_recorded_before_there_is_a_program_is_not_captured_again() -> None:
    cache = _input(0.0, 0.0)

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        between = (x * 2).contiguous()
        return between + between.sum(), cache.assign(cache + x)

    x, once = _input(1.0, 2.0), CapturedOnce(run)
    before = GlobalCounters.kernel_count
    calls = once.record(x=x)
    assert GlobalCounters.kernel_count == before, "nothing ran"
    first, second = once.program(), once.program()
    assert first(x=x)[0].tolist() == second(x=x)[0].tolist() == [8.0, 10.0]
    assert cache.tolist() == [2.0, 4.0] and once.captures == 1
    assert len(calls.src) == len(first.captured.linear.src)


def test_what_a_function_of_tinygrad_returns_is_captured_once_and_is_what_the_program_wrote() -> None:
    """Realising gives no memory to the result of a `function`: it was captured twice, and computed again by whoever
    read it."""
    from tinygrad.function import function

    def body(x: Tensor) -> Tensor:
        return ((x * 2).contiguous() + x.sum()).contiguous()

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        made = function(body, precompile=True, allow_implicit=True)(x)
        return made, made.max()

    x = _input(1.0, 2.0, 3.0)
    program = CapturedOnce(run).program()
    values, largest = program(x=x)
    alone = captured_at_once(lambda x: run(x)[1])
    alone(x=x)
    assert len(program.captured.linear.src) == len(alone.captured.linear.src)
    before = GlobalCounters.kernel_count
    assert values.tolist() == [8.0, 10.0, 12.0] and largest.item() == 12.0
    assert GlobalCounters.kernel_count == before, "reading computes nothing"


def test_a_program_that_writes_nothing_does_not_find_what_another_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    """The promise that the order of the check's runs rests on."""
    from tinygrad.engine import realize

    x, once = _input(4.0), CapturedOnce(lambda x: (x * 2 + 1).contiguous())
    right = once.program()(x=x)
    assert right.tolist() == [9.0]

    def without_calls(linear: UOp) -> UOp:
        return linear.replace(src=linear.src[:0])

    standing = Standing(realize, "lower_and_compile", without_calls)
    wrong = once.program()(x=x)
    standing.take_out()
    assert wrong.uop.base is not right.uop.base and wrong.uop.buffer is not right.uop.buffer


def test_what_was_there_before_is_shared_and_what_a_function_leaves_elsewhere_counts_as_alive() -> None:
    """A cache that a step changes in place is one; a value that it keeps is one of each program."""
    cache, kept = _input(0.0), list[Tensor]()

    def run(x: Tensor) -> Tensor:
        kept[:] = [(x + 1).contiguous().realize()]
        return (cache.assign(cache + kept[0]) * 1.0).contiguous()

    x, once = _input(1.0), CapturedOnce(run)
    first, second = once.program(), once.program()
    assert first(x=x).tolist() == [2.0] and second(x=x).tolist() == [4.0] and first(x=x).tolist() == [6.0]
    assert cache.tolist() == [6.0] and once.captures == 1
    (alive,) = second.fxn._alive
    assert alive.uop.base is not kept[0].uop.base and alive.tolist() == [2.0]


def test_a_program_that_goes_gives_its_memory_back() -> None:
    x, once = (
        Tensor.zeros(1 << 16, dtype=dtypes.float32).contiguous().realize(),
        CapturedOnce(lambda x: (x + 1).contiguous()),
    )
    before = allocated_bytes()
    program = once.program()
    returned = program(x=x)
    assert allocated_bytes() >= before + (1 << 18)
    del program, returned
    gc.collect()
    assert allocated_bytes() == before


def test_what_a_program_without_shared_memory_computed_is_there_afterwards() -> None:
    """In the order of its calls, each by the kernel that wrote it."""

    def run(x: Tensor) -> Tensor:
        doubled = (x * 2).contiguous()
        total = doubled.sum().contiguous()
        return (doubled + total).contiguous()

    def read(buffer: Any) -> list[float]:
        return [float(value) for value in buffer.as_memoryview().cast("f")]

    x, once = _input(1.0, 2.0), CapturedOnce(run)
    assert once.nbytes == 0
    once.program()(x)
    with without_sharing():
        apart = once.program()
        returned = apart(x)
    values = values_of(apart, x.device)
    assert [read(one.buffer) for one in values] == [[2.0, 4.0], [6.0], [8.0, 10.0]]
    assert [one.kernel[0] for one in values] == ["E", "r", "E"] and once.nbytes == 8 + 4 + 8
    (output,) = memory_of_tensors([returned], x.device)
    assert read(output) == [8.0, 10.0] and memory_of_tensors([returned], "another") == []
    apart(_input(0.0, 1.0))
    assert [read(one.buffer) for one in values] == [[0.0, 2.0], [2.0], [2.0, 4.0]]
