"""What all forms of tile programs keep to, whoever asks: the registry's contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from random import Random

import pytest
from tinygrad import Tensor

from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.form import LEAST, ONLY
from kcg.kernel.tile.forms import REGISTRY, forms_of, plan_of
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.legal import FIELDS, is_legal, legal_values, random_parameters
from kcg.kernel.tile.parameters import FORMS, TMA
from kcg.kernel.tile.plan import workspace_bytes
from kcg.workloads.packed_weights import PackedWeights
from tests.chains import region_of
from tests.kernels import empty
from tests.known_targets import KNOWN_TARGETS

TARGET = KNOWN_TARGETS["sm_90"]


def new(*shape: int) -> Tensor:
    return empty(*shape, dtype="bfloat16")


KERNELS: dict[str, tuple[Callable[[], Tensor], set[str]]] = {
    "elements": (lambda: (new(512, 512) * 2).silu(), {"elementwise"}),
    "sums": (lambda: new(512, 1024).float().sum(1), {"reduction"}),
    "softmax": (lambda: new(512, 1024).float().softmax(), {"rows"}),
    "matmul": (lambda: new(512, 512) @ new(512, 768), {"pipelined", "contraction", "reduction"}),
    "float32": (lambda: empty(64, 4096) @ empty(4096, 64), {"contraction", "reduction"}),
    "running sums": (lambda: empty(64, 300).cumsum(1), {"prefix", "reduction"}),
    "packed weights": (lambda: empty(1, 256) @ PackedWeights()("w", (64, 256), "q8_0").T, {"packed", "reduction"}),
    "packed weights, vectors": (
        lambda: empty(256, 512, dtype="float16").dot(PackedWeights()("w", (256, 512), "q4_k").T, dtype="float32"),
        {"unpacking", "contraction", "reduction"},
    ),
    "attention": (
        lambda: new(4, 512, 64).scaled_dot_product_attention(new(4, 512, 64), new(4, 512, 64)),
        {"stream", "specialized"},
    ),
}  # fmt: skip
"""What has which forms."""
CASES = [(name, form) for name, (_, forms) in KERNELS.items() for form in sorted(forms)]
PROGRAMS = 8  # random ones of each kernel
OTHER = {"tail": 2, "loads": TMA, "persistent": 1, "epilogue_parts": 2, "read_early": True, "warp_specialize": True,
         "unpacked": 4}  # fmt: skip
"""Of what only some forms have another value than the least."""


@cache
def kernel_of(name: str) -> TileKernel:
    return read_region(region_of(KERNELS[name][0]()))


def test_the_cases_are_all_forms() -> None:
    assert {form for _, form in CASES} == {*FORMS} == {*REGISTRY}
    assert {*ONLY} == {*OTHER} <= {*LEAST}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_has_the_forms_that_it_is_read_for(name: str) -> None:
    assert {form.name for form in forms_of(kernel_of(name), TARGET)} == KERNELS[name][1]


@pytest.mark.parametrize(("name", "form"), CASES)
def test_a_form_begins_with_a_legal_program_for_each_arrangement_of_axes(name: str, form: str) -> None:
    kernel, own = kernel_of(name), REGISTRY[form]
    view = own.view(kernel)
    for axes in own.axes(view):
        p = own.start(view, TARGET, axes)
        assert (p.form, p.axes) == (form, axes) and is_legal(kernel, TARGET, p)
        assert generate_kernel(kernel, TARGET, p).launches and predicted_seconds(kernel, TARGET, p) > 0
        plan = plan_of(kernel, TARGET, p)
        assert all(hasattr(plan, field.name) for field in fields(plan)), "it has all of its fields"
        assert all(getattr(p, field) in legal_values(kernel, TARGET, p, field) for field in FIELDS)


@pytest.mark.parametrize("name", KERNELS)
def test_what_is_recorded_of_a_program_is_what_its_text_says(name: str) -> None:
    kernel, rng = replace(kernel_of(name), allows_tf32=True), Random(name)
    for p in (random_parameters(kernel, TARGET, rng) for _ in range(PROGRAMS)):
        source = generate_kernel(kernel, TARGET, p)
        assert source.rounds_to_tf32 == ('input_precision="tf32"' in source.source)
        assert source.launches[0].descriptors == ("make_tensor_descriptor" in source.source)
        assert source.workspace_bytes == workspace_bytes(plan_of(kernel, TARGET, p))


@pytest.mark.parametrize(("name", "form"), CASES)
def test_a_form_lacks_what_it_does_not_name(name: str, form: str) -> None:
    """A parameter of other forms has its least value alone, and no program is written of another one."""
    kernel, own = kernel_of(name), REGISTRY[form]
    view = own.view(kernel)
    p = own.start(view, TARGET, own.axes(view)[0])
    for field, value in OTHER.items():
        if field in own.fields:
            continue
        assert own.fixed.get(field) is not None or own.values(view, TARGET, p, field) == (LEAST[field],)
        with pytest.raises(UnsupportedTile):
            generate_kernel(kernel, TARGET, p.changed(**{field: value}))


@pytest.mark.parametrize(("name", "form"), CASES)
def test_a_form_writes_no_program_of_a_kernel_that_it_is_not_of(name: str, form: str) -> None:
    own = REGISTRY[form]
    view = own.view(kernel_of(name))
    p = own.start(view, TARGET, own.axes(view)[0])
    for other, (_, forms) in KERNELS.items():
        if form not in forms:
            with pytest.raises(UnsupportedTile):
                generate_kernel(kernel_of(other), TARGET, p)
