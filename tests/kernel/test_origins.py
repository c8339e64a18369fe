"""Kernels are named by the layers whose parameters they read, else by the lines that made what they store."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tinygrad import Context, Tensor, TinyJit, nn

from kcg.compat.sequences import recording_sequences
from kcg.kernel.origins import KEPT, merged, origins_of
from kcg.kernel.sequences import sequences_of_captured
from kcg.types import Region, Workload, WorkloadCall
from kcg.workloads.script import Form, Program, capture_program, workload_json, workload_of
from tests.captured import captured

FILE = Path(__file__).name
WIDTH = 8


def recorded(run: Callable[[], Any]) -> Workload:
    with recording_sequences() as recorder:
        run()
    sequences = sequences_of_captured(recorder.sequences())
    kernels = dict.fromkeys(call.kernel for sequence in sequences for call in sequence.calls if call.kernel)
    return Workload("here", "", tuple(WorkloadCall(Region((kernel,)), 1) for kernel in kernels), sequences=sequences)


def labels(workload: Workload, *regions: Region) -> set[tuple[str, int]]:
    return {one for origins in origins_of(workload, regions).values() for one in origins}


def line_of(text: str) -> str:
    return f"{FILE}:{1 + Path(__file__).read_text().split(text)[0].count(chr(10))}"


class Block:
    def __init__(self, value: float) -> None:
        self.up, self.scale = nn.Linear(WIDTH, WIDTH), Tensor.full((WIDTH,), value).contiguous().realize()
        self.up.weight = Tensor.full((WIDTH, WIDTH), value).contiguous().realize()
        self.up.bias = Tensor.full((WIDTH,), value).contiguous().realize()

    def __call__(self, x: Tensor) -> Tensor:
        return (self.up(x) * self.scale).contiguous()


class Model:
    """Holds itself, data that is large, and an attribute that must not be computed."""

    def __init__(self, layers: int) -> None:
        self.layers = [Block(1.0 + number) for number in range(layers)]
        self.me, self.data = self, list(range(100_000))

    @property
    def expensive(self) -> Tensor:
        raise AssertionError("looking for parameters computes nothing")

    def __call__(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return (x + 1).contiguous()  # the line of the sum


class Awkward:
    """Breaks whoever looks at it."""

    @property
    def __class__(self) -> type:
        raise RuntimeError("nobody may ask")

    @__class__.setter
    def __class__(self, value: type) -> None:
        raise RuntimeError


def ones() -> Tensor:
    return Tensor.ones(2, WIDTH).contiguous().realize()


def test_layers_are_named_by_the_parameters_that_kernels_read_whether_they_are_replayed_or_not() -> None:
    model, x = Model(3), ones()
    step = TinyJit(lambda x: model(x).realize())
    replayed = recorded(lambda: [step(x) for _ in range(5)])
    assert labels(replayed) == {("model.layers.*.up", 15), (line_of("# the line of the sum"), 5)}
    one_by_one = recorded(lambda: [layer(x).realize() for layer in (*model.layers, model.layers[0])])
    assert len(one_by_one.sequences) == 1, "the same calls of several layers are one sequence"
    assert labels(one_by_one) == {("model.layers.*.up", 4)}
    assert labels(recorded(lambda: model.layers[2](x).realize())) == {("model.layers.2.up", 1)}


def test_a_tensor_that_is_no_part_of_something_names_no_layer() -> None:
    weight, x = Tensor.ones(WIDTH, WIDTH).contiguous().realize(), ones()
    alone = recorded(lambda: (x @ weight).realize())  # not of a layer
    assert labels(alone) == {(line_of("# not of a layer"), 1)}
    state = {"weight": weight}
    assert state and labels(recorded(lambda: (x @ weight).realize())) == {("state", 1)}


def test_what_a_notebooks_shell_holds_names_no_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a notebook is in objects of its shell, too, which are in `__main__` before what the user wrote."""

    class Shell:
        def __init__(self, model: Model) -> None:
            self.namespace = {"model": model}

    Shell.__module__ = "IPython.core.interactiveshell"
    notebook, x = ModuleType("__main__"), ones()
    written = Model(1)
    vars(notebook).update(exit=Shell(written), In=["written"], Out={1: written}, _=written, net=written)
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    assert labels(recorded(lambda: vars(notebook)["net"].layers[0](x).realize())) == {("net.layers.0.up", 1)}


class Step:
    """Two layers, their loss, and a step of an optimizer."""

    def __init__(self) -> None:
        self.layers = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
        for parameter in nn.state.get_parameters(self.layers):
            parameter.realize()
        self.optimizer = nn.optim.SGD(nn.state.get_parameters(self.layers), lr=0.1)

    def __call__(self, x: Tensor, *, at_once: bool) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        with Context(TRAINING=1):
            self.optimizer.zero_grad()
            loss = (x - 1).square().mean().backward()
            if at_once:
                return loss.realize(*self.optimizer.schedule_step())
            self.optimizer.step()
            return loss


@pytest.mark.parametrize("at_once", [True, False])
def test_forward_and_backward_kernels_of_a_layer_differ_in_name(at_once: bool) -> None:
    """Also where the forward pass is computed for gradients alone, and the loss is asked for later or never."""
    step, x = Step(), ones()
    workload = recorded(lambda: step(x, at_once=at_once))
    calls = [call for sequence in workload.sequences for call in sequence.calls if call.layers]
    names = [name for call in calls for name, _ in call.layers]
    assert names[:2] == ["step.layers.0", "step.layers.1"]
    assert {*names[2:]} == {"step.layers.0 (backward)", "step.layers.1 (backward)"}
    assert {label for label, _ in labels(workload)} >= {"step.layers.0", "step.layers.0 (backward)"}


def test_a_forward_pass_after_a_step_is_no_backward_pass() -> None:
    step, x = Step(), ones()

    def run() -> None:
        step(x, at_once=True)
        (step.layers[1](step.layers[0](x).contiguous()) + 1).realize()

    *_, last = recorded(run).sequences
    assert [name for call in last.calls for name, _ in call.layers] == ["step.layers.0", "step.layers.1"]


def test_backward_kernels_of_a_workload_that_is_never_run_are_told_apart() -> None:
    found = {name for origins in origins_of(captured("mlp_train", "mini")).values() for name, _ in origins}
    backward = {name.removesuffix(" (backward)") for name in found if name.endswith(" (backward)")}
    assert backward and backward <= found, found


def test_cells_of_a_notebook_are_named_by_their_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython makes up a file's name for each, and knows its number by that."""
    helper, caller = tmp_path / "4711.py", tmp_path / "4712.py"
    helper.write_text("def more(x):\n    return (x + 1).contiguous()\n")
    caller.write_text("\n\nmade = more(x).realize()\n")
    numbers = {str(helper): 3, str(caller): 12}

    class Compiler:
        def format_code_name(self, name: str) -> tuple[str, str] | None:
            return ("Cell", f"In[{numbers[name]}]") if name in numbers else None

    class Shell:
        compile = Compiler()

    module = ModuleType("IPython.core.getipython")
    vars(module)["get_ipython"] = Shell
    monkeypatch.setitem(sys.modules, "IPython.core.getipython", module)
    more, x = runpy.run_path(str(helper))["more"], ones()
    workload = recorded(lambda: runpy.run_path(str(caller), {"more": more, "x": x}))
    assert labels(workload) == {("In [3]:2", 1)}
    (call,) = (call for sequence in workload.sequences for call in sequence.calls if call.kernel)
    assert call.origin.startswith("In [3]:2 < In [12]:3")
    vars(module)["get_ipython"] = lambda: None
    assert labels(recorded(lambda: more(x).realize())) == {("4711.py:2", 1)}


def test_a_look_keeps_nothing_alive() -> None:
    """The variables of a running function are copied to be looked at, and what was in them goes with it."""
    import weakref

    model, x = Model(1), ones()
    gone = weakref.ref(x)

    def run() -> None:
        nonlocal x
        y = model(x).realize()
        x = y

    recorded(run)
    assert gone() is None


def test_objects_that_break_whoever_looks_do_not_break_the_program() -> None:
    model, awkward, x = Model(1), Awkward(), ones()
    workload = recorded(lambda: [awkward, model(x).realize()])
    assert {count for _, count in labels(workload)} == {1}


def test_layers_alike_are_named_together_and_of_others_that_of_the_largest_parameter() -> None:
    class Norms:
        def __init__(self) -> None:
            self.txt, self.img = Block(1.0), Block(2.0)

    norms, x = Norms(), ones()
    both = recorded(lambda: (x * norms.txt.scale + x * norms.img.scale).realize())
    assert labels(both) == {("norms.{txt,img}", 1)}
    assert labels(recorded(lambda: (norms.txt(x) + norms.img.scale).realize())) >= {("norms.txt.up", 1)}


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"a.0.q": 1, "a.1.q": 2, "a.1.k": 1}, (("a.*.q", 3), ("a.1.k", 1))),
        ({"a.0.mlp.0": 1, "a.1.mlp.0": 1}, (("a.*.mlp.0", 2),)),
        ({"a.0.b.1": 1, "a.0.b.2": 1, "a.1.b.1": 1}, (("a.*.b.1", 2), ("a.0.b.2", 1))),
        ({"a.0 (backward)": 1, "a.1 (backward)": 1, "a.0": 1}, (("a.* (backward)", 2), ("a.0", 1))),
        ({"a.0.q + a.0.norm": 1, "a.1.q + a.1.norm": 1}, (("a.*.q + a.*.norm", 2),)),
        ({"model.py:3": 1, "model.py:4": 2}, (("model.py:4", 2), ("model.py:3", 1))),
        ({"a": 0, "": 7}, ()),
    ],
)
def test_layers_that_differ_in_a_number_count_together(
    labels: dict[str, int], expected: tuple[tuple[str, int], ...]
) -> None:
    assert merged(labels) == expected


def test_the_most_common_are_kept() -> None:
    assert merged({f"layer_{number}": number for number in range(1, 30)}) == tuple(
        (f"layer_{number}", number) for number in range(29, 29 - KEPT, -1)
    )


@pytest.fixture(scope="module")
def flux() -> Workload:
    return captured("flux", "1024")


@pytest.mark.slow
def test_flux_has_the_names_of_its_published_weights(flux: Workload) -> None:
    """Of a capture with three blocks of each kind, counted as all 57."""
    found = origins_of(flux)
    for call in flux.calls:
        assert sum(count for _, count in found[call.region.id]) == call.calls
    named = {one for origins in found.values() for one in origins}
    assert named >= {
        ("double_blocks.*.img_attn.qkv", 19),
        ("double_blocks.*.{txt_attn,img_attn}.norm.query_norm", 19),
        ("double_blocks.*.txt_mlp.2", 19),
        ("single_blocks.*.linear1", 38),
        ("final_layer.linear", 1),
    }
    assert {label.partition(":")[0] for label, _ in named if ":" in label} == {"flux.py"}


@pytest.mark.slow
def test_origins_are_no_part_of_what_tells_kernels_and_sequences_apart(flux: Workload) -> None:
    (sequence,) = flux.sequences
    bare = replace(sequence, calls=tuple(replace(call, layers=(), origin="") for call in sequence.calls))
    assert (bare, bare.id) == (sequence, sequence.id)
    assert {call.origin for call in flux.calls} == {""}, "and exports of datasets are as before"


def test_a_region_of_several_kernels_has_their_layers() -> None:
    small = captured("flux", "mini")
    (sequence,) = small.sequences
    place = next(
        p for p, call in enumerate(sequence.calls) if call.layers[:1] == (("double_blocks.0.img_attn.qkv", 1),)
    )
    stores = {
        view.buffer for slot, view in enumerate(sequence.calls[place].views) if slot in sequence.calls[place].writes
    }
    reader = next(p for p, call in enumerate(sequence.calls) if p > place and stores & {v.buffer for v in call.views})
    region = sequence.region(place, reader)
    ((label, count), *_) = origins_of(small, [region])[region.id]
    assert label.startswith("double_blocks.*.img_attn.qkv") and count > 1


SCRIPT = """
from tinygrad import Context, Tensor, TinyJit, nn

class Model:
    def __init__(self): self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 8)
    def __call__(self, x): return self.head(self.norm(x).contiguous())

def main():
    model = Model()
    step = TinyJit(lambda x: model(x).realize())
    for _ in range(5): step(Tensor.ones(2, 8).contiguous().realize())

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_the_parameters_of_a_script_are_found_where_it_keeps_them(tmp_path: Path) -> None:
    script = tmp_path / "s.py"
    script.write_text(SCRIPT)
    workload = capture_program(Program(Form.SCRIPT, str(script)), dev=os.environ["DEV"]).workload
    assert labels(workload) > {("model.norm", 5), ("model.head", 5)}
    assert {label.rpartition(":")[0] for label, _ in labels(workload) if ":" in label} == {"s.py"}
    assert origins_of(workload_of(workload_json(workload))) == origins_of(workload)
