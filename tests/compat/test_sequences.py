"""What a program runs in which order on which buffers: read before memory is planned, and the same in every run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tinygrad import Tensor, TinyJit, Variable

from kcg.compat.capture import calls_of
from kcg.compat.partition import LIVE
from kcg.compat.sequences import COPY, recording_sequences, sequences_of
from kcg.errors import CodecError
from kcg.kernel.sequences import partition_of, sequence_from_json, sequence_json, sequences_of_captured
from kcg.types import Region, Sequence, SequenceBuffer, SequenceCall, SlotBinding
from kcg.workloads.capture import lazy_workload
from kcg.workloads.script import Form, Program, capture_program
from tests.chains import region_of, sequence_of
from tests.commands import python
from tests.kernels import empty, example_region

FILE = Path(__file__)
ROWS, WIDTH = 4, 8


def recorded(run: Callable[[], Any]) -> tuple[Sequence, ...]:
    with recording_sequences() as recorder:
        run()
    return sequences_of_captured(recorder.sequences())


def two_norms(x: Tensor) -> Tensor:
    return (x.layernorm().contiguous() + x.flip(0).layernorm().contiguous()).contiguous()


def line_of(text: str) -> str:
    """Where in this file a text is first."""
    return f"{FILE}:{1 + FILE.read_text().split(text)[0].count(chr(10))}"


def test_calls_come_with_the_buffers_that_they_share() -> None:
    """tinygrad's planner lays intermediates of two norms into one buffer; here each is one."""
    sequence = sequence_of(two_norms(empty(ROWS, WIDTH)))
    assert len(sequence.calls) == 7
    sums = [call for call in sequence.calls if sequence.buffers[call.views[0].buffer].size == 4 * ROWS]
    assert len(sums) == 4 and len({call.views[0].buffer for call in sums}) == 4
    last = sequence.calls[-1]
    assert (last.writes, last.reads) == ((0,), (1, 2))
    held = [sequence.buffers[view.buffer].held for view in last.views]
    assert held == [True, False, False], "the output lives, the norms' values do not"
    (x,) = [view for view in sums[0].views if 0 not in sums[0].writes or view is not sums[0].views[0]]
    assert sequence.buffers[x.buffer].held, "an input was there before"


def test_a_norm_is_a_region_of_three_kernels() -> None:
    sequence = sequence_of(two_norms(empty(ROWS, WIDTH)))
    norm = [place for place, call in enumerate(sequence.calls) if call.views[-1] == sequence.calls[0].views[-1]]
    first = sequence_of(empty(ROWS, WIDTH).layernorm().contiguous())
    region = first.region(0, 1, 2)
    assert norm and region.args == ((0, 1), (2, 1, 0), (3, 1, 0, 2)) and region.outputs == (3,)
    both = {sequence.region(*places).id for places in ((0, 2, 4), (0, 2, 4))}
    assert len(both) == 1
    assert first.region(1).id == sequence_of(empty(ROWS, WIDTH).layernorm().contiguous()).region(1).kernel.id
    with pytest.raises(ValueError, match="calls that run kernels"):
        first.region()


def test_what_another_call_reads_is_an_output() -> None:
    x = empty(ROWS, WIDTH)
    first = (x + 1).contiguous()
    sequence = sequence_of((first * 2).contiguous(), (first - x).contiguous())
    assert [call.writes for call in sequence.calls] == [(0,)] * 3
    assert sequence.region(0, 1).outputs == (0, 2) and sequence.region(0, 1, 2).outputs == (0, 2, 3)
    del first


def test_a_sequence_shows_where_a_region_occurs_and_where_it_is_not_safe() -> None:
    x, y = empty(ROWS, WIDTH), empty(ROWS, WIDTH)
    norm = region_of(empty(ROWS, WIDTH).layernorm().contiguous())
    one, other = x.layernorm().contiguous(), y.layernorm().contiguous()
    sequence = sequence_of((one + other).contiguous(), other)
    partition = partition_of(sequence)
    claimed = [places for places, _ in partition.claim(norm)]
    assert len(claimed) == 2 and len({place for places in claimed for place in places}) == 6
    assert [len(group) for group in partition.order()] == [3, 3, 1] and not partition.left()
    whole = sequence.region(*range(7))
    assert [places for places, _ in partition_of(sequence).claim(whole)] == [tuple(range(7))]
    less = replace(whole, outputs=whole.outputs[-1:])
    partition = partition_of(sequence)
    assert not partition.claim(less) and partition.left() == {(less.id, LIVE): 1}


@pytest.mark.parametrize("name", ["eager", "jit"])
def test_the_hash_is_that_of_the_wiring(name: str) -> None:
    def hash_of(model: Callable[[Tensor, Tensor], Tensor]) -> str:
        x, y = (Tensor.ones(ROWS, WIDTH).contiguous().realize() for _ in range(2))
        if name == "eager":
            return recorded(lambda: model(x, y).realize())[0].id
        step = TinyJit(lambda a, b: model(a, b).realize())
        (steady,) = [s for s in recorded(lambda: [step(x, y) for _ in range(3)]) if s.steady]
        return steady.id

    def apart(x: Tensor, y: Tensor) -> Tensor:
        a, b = (x + 1).contiguous(), (y + 1).contiguous()
        return (a - b).contiguous()

    def chained(x: Tensor, y: Tensor) -> Tensor:
        a = (x + 1).contiguous()
        b = (a + 1).contiguous()
        return (a - b).contiguous()

    def turned(x: Tensor, y: Tensor) -> Tensor:
        a = (x + 1).contiguous()
        b = (a + 1).contiguous()
        return (b - a).contiguous()

    ids = [hash_of(model) for model in (apart, apart, chained, turned, chained)]
    assert ids[0] == ids[1] and ids[2] == ids[4] and len(set(ids)) == 3, "the same kernels, wired in three ways"


@pytest.mark.slow
def test_the_hash_is_the_same_in_another_process() -> None:
    code = (
        "from tests.compat.test_sequences import *\nfrom tests.kernels import empty\n"
        "print(sequence_of(two_norms(empty(ROWS, WIDTH))).id)"
    )
    done = python("-c", code)
    assert done.stdout.strip() == sequence_of(two_norms(empty(ROWS, WIDTH))).id


def test_a_replayed_step_is_apart_from_what_runs_once() -> None:
    x = Tensor.ones(ROWS, WIDTH).contiguous().realize()

    def run() -> None:
        once = (x * 7).contiguous().realize()
        step = TinyJit(lambda a: two_norms(a).realize())
        for _ in range(5):
            step(once)

    sequences = recorded(run)
    assert [(s.steady, s.executions, len(s.calls)) for s in sequences] == [(False, 1, 1), (False, 1, 7), (True, 4, 7)]
    assert sequences[1].id == sequences[2].id, "the first call runs the same"


def test_each_run_of_a_loop_counts_and_variables_are_distinguished() -> None:
    n, x = Variable("n", 1, ROWS), Tensor.ones(ROWS, WIDTH).contiguous().realize()

    def model(a: Tensor, v: Any) -> Tensor:
        return (a.shrink(((0, v), None)) * 2).sum()

    def run() -> None:
        for value in (2, 3, 3):
            model(x, n.bind(value)).realize()
        step = TinyJit(lambda a, v: model(a, v).realize())
        for value in (1, 4, 4, 2):
            step(x, n.bind(value))

    eager, steady = recorded(run)
    assert (eager.steady, eager.seen) == (False, (((("n", 1),), 1), ((("n", 2),), 1), ((("n", 3),), 2)))
    assert (steady.steady, steady.seen) == (True, (((("n", 2),), 1), ((("n", 4),), 2)))
    assert eager.id == steady.id and eager.executions == 4


def test_views_that_share_memory_are_no_region_where_one_is_written() -> None:
    kernel = example_region("gelu").kernel

    def call(written: SlotBinding, read: SlotBinding) -> SequenceCall:
        return SequenceCall(kernel, (written, read), (1,), (0,))

    first, second, whole, x = (
        SlotBinding(0, 0, 64),
        SlotBinding(0, 64, 64),
        SlotBinding(0, 0, 128),
        SlotBinding(1, 0, 64),
    )
    buffers = (SequenceBuffer(128, "float32", False), SequenceBuffer(64, "float32", True))
    apart = Sequence((call(first, x), call(second, first)), buffers)
    assert apart.region(0, 1).args == ((0, 1), (2, 0)), "two parts of a buffer are two buffers of a region"
    shared = Sequence((call(first, x), call(x, whole)), buffers)
    with pytest.raises(ValueError, match="share memory"):
        shared.region(0, 1)
    assert len(shared.region(1).kernels) == 1


def test_what_is_computed_again_is_stored_elsewhere() -> None:
    x = empty(ROWS, WIDTH)
    a = (x + 1).contiguous()
    sequence = sequence_of((a * 2).contiguous(), (a * 3).contiguous())
    assert [len(sequence.region(0, place).outputs) for place in (1, 2)] == [2, 2], "another call uses what 0 leaves"
    again = sequence.region(0, 1, again=[0])
    assert again.kernels == sequence.region(0, 1).kernels and len(again.outputs) == 1


def test_updates_in_place_views_and_copies_are_seen() -> None:
    state, x = Tensor.zeros(ROWS, WIDTH).contiguous().realize(), Tensor.ones(ROWS, WIDTH).contiguous().realize()
    (update,) = recorded(lambda: state.assign(state + x).realize())
    (call,) = update.calls
    assert call.writes == (0,) and 0 in call.reads and update.region(0).id == call.kernel.id  # type: ignore[union-attr]
    (part,) = recorded(lambda: (x[1:3].contiguous() + 1).contiguous().realize())
    (call,) = part.calls
    assert call.views[1] == SlotBinding(1, 4 * WIDTH, 2 * 4 * WIDTH) and part.buffers[1].size == 4 * ROWS * WIDTH
    (copied,) = recorded(lambda: Tensor([1.0, 2.0, 3.0]).contiguous().realize())
    assert [call.what for call in copied.calls] == [COPY] and copied.calls[0].kernel is None
    assert (copied.calls[0].reads, copied.calls[0].writes) == ((1,), (0,))


def test_no_buffer_of_the_program_is_kept() -> None:
    import gc

    from tinygrad.helpers import GlobalCounters

    gc.collect()
    before = GlobalCounters.mem_used
    with recording_sequences() as recorder:
        made = (Tensor.ones(1024, 64).contiguous() + 1).contiguous().realize()
        assert GlobalCounters.mem_used > before
        del made
        gc.collect()
        assert GlobalCounters.mem_used <= before and recorder.sequences()


def test_a_model_that_holds_nothing_is_scheduled_once_and_counts_as_a_step() -> None:
    outputs = (two_norms(empty(ROWS, WIDTH)),)
    workload = lazy_workload("norms", "small", *outputs)
    (sequence,) = workload.sequences
    assert sequence.steady and sequence.executions == 1
    assert sum(call.calls for call in workload.calls) == len(sequence.calls) == 7
    assert {call.region.id for call in workload.calls} == {call.kernel.id for call in sequence.calls if call.kernel}
    assert sequences_of(*outputs) == [] == calls_of(*outputs), "nothing is left to compute"


# ---- lines ----


def test_a_kernel_names_the_line_that_made_it() -> None:
    x = Tensor.ones(ROWS, WIDTH).contiguous().realize()

    def model(a: Tensor) -> Tensor:
        normed = a.layernorm().contiguous()  # the line of the norm
        return (normed * 2).contiguous()  # the line of the product

    norm, product = line_of("# the line of the norm"), line_of("# the line of the product")
    step = TinyJit(lambda a: model(a).realize())
    eager, steady = recorded(lambda: [step(x) for _ in range(2)])
    for sequence in (eager, steady):
        assert [call.origin.split(" < ")[0] for call in sequence.calls] == [norm] * 3 + [product]
    state = Tensor.zeros(ROWS, WIDTH).contiguous().realize()
    (update,) = recorded(lambda: state.assign(state + x).realize())  # the line of the update
    assert update.calls[0].origin.startswith(line_of("# the line of the update"))


def test_a_model_of_kcgs_own_names_its_lines() -> None:
    from kcg.workloads.registry import spec_of

    (sequence,) = spec_of("norms").capture(spec_of("norms").presets_for("CPU")[0]).sequences
    assert all("kcg/workloads/zoo/" in call.origin for call in sequence.calls if call.kernel)


SCRIPT = """
from tinygrad import Tensor, TinyJit, dtypes
once = (Tensor([[3, 1, 2], [7, 5, 4]], dtype=dtypes.uint8).clone().realize() + 1).contiguous().realize()
@TinyJit
def step(x):
    return (x.layernorm().contiguous() * 2).contiguous().realize()
for _ in range(5):
    step(once.cast("float32").contiguous().realize())
"""


def test_a_script_is_captured_with_its_sequences(tmp_path: Path) -> None:
    script = tmp_path / "s.py"
    script.write_text(SCRIPT)
    captured = capture_program(Program(Form.SCRIPT, str(script)), dev=os.environ["DEV"])
    sequences = captured.workload.sequences
    (steady,) = [sequence for sequence in sequences if sequence.steady]
    assert steady.executions == 4 and len(steady.calls) == 4
    assert [call.origin for call in steady.calls] == [f"{script}:6 < {script}:8"] * 4
    once = [sequence for sequence in sequences if not sequence.steady]
    assert any(buffer.dtype == "uint8" for sequence in once for buffer in sequence.buffers)
    counts: dict[str, int] = {}
    for sequence in sequences:
        for call in sequence.calls:
            if call.kernel is not None:
                counts[call.kernel.id] = counts.get(call.kernel.id, 0) + sequence.executions
    assert counts == {call.region.id: call.calls for call in captured.workload.calls}, "every execution is in one"
    assert [sequence_from_json(sequence_json(sequence)) for sequence in sequences] == list(sequences)
    workload = captured.workload
    assert workload.steps == 4 and set(workload.replayed.values()) == {4}
    apart = {call.region.id: call.calls for call in workload.calls if call.region.id not in workload.replayed}
    assert len(workload.replayed) == len(workload.calls) - len(apart) and sum(apart.values()) >= 2


def test_a_workload_that_was_never_replayed_has_no_steady_state() -> None:
    from kcg.workloads.registry import spec_of

    workload = spec_of("norms").capture(spec_of("norms").presets_for("CPU")[0])
    assert (workload.steps, workload.replayed) == (0, {})


def test_nothing_stays_behind() -> None:
    from tinygrad import tensor
    from tinygrad.engine import jit

    names = (tensor.create_linear_with_vars, tensor.transform_to_call, jit.jit_lower, jit.run_linear)
    methods = [Tensor.__dict__[name] for name in ("_apply_uop", "assign")]
    with recording_sequences():
        assert jit.run_linear is not names[3]
    assert (tensor.create_linear_with_vars, tensor.transform_to_call, jit.jit_lower, jit.run_linear) == names
    assert [Tensor.__dict__[name] for name in ("_apply_uop", "assign")] == methods


# ---- as text ----


@pytest.fixture(scope="module")
def stored() -> str:
    n, x = Variable("n", 1, ROWS), Tensor.ones(ROWS, WIDTH).contiguous().realize()
    (sequence,) = recorded(lambda: (x.shrink(((0, n.bind(2)), None)) + 1).contiguous().sum().realize())
    return sequence_json(sequence)


def test_a_sequence_goes_into_text_and_back(stored: str) -> None:
    read = sequence_from_json(stored)
    assert sequence_json(read) == stored and read.executions == 1 and read.calls[0].origin
    assert read.id == replace(read, seen=(), steady=True).id != replace(read, calls=read.calls[:1]).id
    copied = recorded(lambda: Tensor([1.0]).contiguous().realize())
    assert sequence_from_json(sequence_json(copied[0])) == copied[0]


def test_whatever_a_program_calls_things_goes_into_text_and_back() -> None:
    """Texts as keys of a dictionary, a file's name with a line break, a variable that is no plain word."""
    keys = ("two\nlines", "long" * 2_000, "half of a character \ud800")
    weights = {key: Tensor.ones(ROWS, WIDTH).contiguous().realize() for key in keys}
    n = Variable("start " + "n" * 64, 1, ROWS)

    def run() -> None:
        for weight in weights.values():
            (weight.shrink(((0, n.bind(2)), None)) + 1).contiguous().realize()

    with recording_sequences() as recorder:
        recorder.parameters.name(weights.items())
        exec(compile("run()", "generated\nby a program", "exec"), {"run": run})
    found = sequences_of_captured(recorder.sequences())
    assert [sequence_from_json(sequence_json(one)) for one in found] == list(found)
    layers = [path for one in found for call in one.calls for path, _ in call.layers]
    assert len(layers) == len(set(layers)) == len(keys) and layers[0] == "two lines"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ((), [], "lacks a field"),
        (("format",), 1, "format 2"),
        (("steady",), 1, "steady must be a bool"),
        (("asts", 0), "{}", "not {format, nodes}"),
        (("asts", 0), 3, "must be a text"),
        (("buffers", 0, 0), -1, "a buffer's size"),
        (("buffers", 0, 1), "a b", "a plain word"),
        (("calls", 0, 0), 9, "a call's kernel"),
        (("calls", 0, 1, 0, 0), 7, "a view's buffer"),
        (("calls", 0, 1, 0, 2), 1 << 20, "ends after its buffer"),
        (("calls", 0, 2, 0), 5, "a slot"),
        (("calls", 0, 5), "two\nlines", "a line of text"),
        (("calls", 0, 6), [["two\nlines", 1]], "a layer must be a line of text"),
        (("calls", 0, 6), [["a.layer", -1]], "a count"),
        (("calls", 0), [], "must have 7 entries"),
        (("calls",), [], "has calls"),
        (("seen", 0, 0, 0, 0), "n n", "a plain word"),
        (("seen", 0, 1), -1, "a count"),
        (("seen", 0, 0, 0, 1), 0.5, "whole number"),
    ],
)
def test_a_text_that_is_none_is_refused(stored: str, path: tuple[str | int, ...], value: Any, message: str) -> None:
    document = json.loads(stored)
    place = document
    for step in path[:-1]:
        place = place[step]
    if path:
        place[path[-1]] = value
    else:
        document = value
    with pytest.raises(CodecError, match=message) as caught:
        sequence_from_json(json.dumps(document))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[", "[" * 100_000, "null", '{"format":1}'])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(CodecError):
        sequence_from_json(text)


def test_buffers_are_numbered_as_they_appear(stored: str) -> None:
    document = json.loads(stored)
    document["buffers"].append(document["buffers"][0])
    with pytest.raises(CodecError, match="numbered as they appear"):
        sequence_from_json(json.dumps(document))


def test_a_region_of_one_call_is_its_kernel() -> None:
    region = region_of((empty(ROWS, WIDTH) + 1).contiguous())
    assert region == Region(region.kernels) and region.id == region.kernel.id
    assert np.asarray(region.args).size == 0
