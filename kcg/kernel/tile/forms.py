"""The registry of forms: name -> what decides for its programs. A new form is one file, and one line here."""

from __future__ import annotations

from typing import Any, Final

from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.tile.flash_attention import FlashAttention
from kcg.kernel.tile.form import Form
from kcg.kernel.tile.gemm import Matmul
from kcg.kernel.tile.packed import PackedProducts
from kcg.kernel.tile.parameters import TileParameters
from kcg.kernel.tile.pipelined import PipelinedMatmul
from kcg.kernel.tile.plan import TilePlan
from kcg.kernel.tile.pointwise import Pointwise, Reduction
from kcg.kernel.tile.prefix import PrefixSums
from kcg.kernel.tile.rows import RowReductions
from kcg.kernel.tile.specialized import SpecializedAttention
from kcg.kernel.tile.unpacking import UnpackingMatmul
from kcg.types import Target

REGISTRY: Final[dict[str, Form[Any, Any]]] = {
    form.name: form
    for form in (
        Pointwise(),
        PipelinedMatmul(),
        UnpackingMatmul(),
        Matmul(),
        Reduction(),
        PrefixSums(),
        PackedProducts(),
        RowReductions(),
        FlashAttention(),
        SpecializedAttention(),
    )
}
"""In the order in which a kernel's forms are told."""


def form_of(p: TileParameters) -> Form[Any, Any]:
    """The form of a program."""
    return REGISTRY[p.form]


def forms_of(kernel: TileKernel, target: Target) -> tuple[Form[Any, Any], ...]:
    """The forms that a kernel's program may have."""
    return tuple(form for form in REGISTRY.values() if form.has(kernel, target))


def plan_of(kernel: TileKernel, target: Target, p: TileParameters) -> TilePlan:
    """The plan of a kernel's program. Raises UnsupportedTile where there is no such program."""
    form = form_of(p)
    plan: TilePlan = form.plan(form.view(kernel), target, p)
    return plan
