"""A tile program from a kernel and parameters: the functions of its module, and how they are launched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.contraction import fits_epilogue
from kcg.kernel.tile.device import device_of
from kcg.kernel.tile.emit import POINTERS, TYPES, Lines, Writer
from kcg.kernel.tile.form import ONLY, Form
from kcg.kernel.tile.forms import form_of
from kcg.kernel.tile.gluon import in_gluon
from kcg.kernel.tile.parameters import POINTER, TileParameters
from kcg.kernel.tile.plan import TilePlan, workspace_bytes
from kcg.kernel.tile.program import WORKSPACE, Argument, TileLaunch, TileSource
from kcg.kernel.tile.tiles import is_power_of_two, variable_name
from kcg.types import Region, Target

ENTRY = "tile_kernel"
SUM_WARPS = 4  # of the launch that adds partial sums


def generate(region: Region, target: Target, parameters: TileParameters, *, interpreted: bool = False) -> TileSource:
    """The tile program of a region. Raises UnsupportedTile, with the construct that is in the way."""
    return generate_kernel(read_region(region), target, parameters, interpreted=interpreted)


def generate_kernel(
    kernel: TileKernel, target: Target, parameters: TileParameters, *, interpreted: bool = False
) -> TileSource:
    """See `generate`; of a kernel that is read already."""
    form = form_of(parameters)
    if form.plans:
        return written(form, form.plan(form.view(kernel), target, parameters), interpreted=interpreted)
    _check(form, kernel, parameters)
    policies = dict.fromkeys(parameters.evict_first, "evict_first") | dict.fromkeys(parameters.evict_last, "evict_last")
    evictions = {
        load.node: policies[number]
        for one in kernel.launched
        for number, load in enumerate(one.loads)
        if number in policies
    }
    ptx = device_of(target).ptx
    writer = Writer(
        kernel, interpreted=interpreted, fast_math=parameters.fast_math and ptx, evictions=evictions, ptx=ptx,
        style=form.style,
    )  # fmt: skip
    main, grid = form.write_at_once(kernel, target, parameters, writer)
    partials = form.partials(kernel, target, parameters)
    arguments = _arguments(kernel, workspace=form.partial_type(kernel) if partials else "")
    first = TileLaunch(
        ENTRY, arguments, grid, parameters.num_warps, parameters.num_stages, parameters.maxnreg, writer.has_descriptors
    )
    launches, bodies = [first], [_function(ENTRY, arguments, main)]
    if partials:
        lines, sums = form.write_second_at_once(kernel, target, parameters, writer)
        launches.append(TileLaunch(f"{ENTRY}_sum", arguments, sums, SUM_WARPS, 1))
        bodies.append(_function(f"{ENTRY}_sum", arguments, lines))
    text = _functions(writer, bodies)
    text = in_gluon(text) if form.in_gluon else f"import triton\nimport triton.language as tl\n{text}"
    return TileSource(text, tuple(launches), _workspace(form, kernel, partials), writer.rounds_to_tf32)


def written(form: Form[Any, Any], plan: TilePlan, *, interpreted: bool = False) -> TileSource:
    """The text of a plan, and its launches. Raises UnsupportedTile where a value has no expression."""
    kernel, fast_math = plan.view.kernel, plan.fast_math and plan.ptx
    writer = Writer(
        kernel, interpreted=interpreted, fast_math=fast_math, evictions=plan.evictions, ptx=plan.ptx, style=plan.style
    )
    main = form.write(plan, writer)
    arguments = _arguments(kernel, workspace=plan.partial_type if plan.partials else "")
    first = TileLaunch(
        ENTRY, arguments, plan.programs, plan.num_warps, plan.num_stages, plan.maxnreg, writer.has_descriptors
    )
    launches, bodies = [first], [_function(ENTRY, arguments, main)]
    if plan.partials:
        lines, sums = form.write_second(plan, writer)
        launches.append(TileLaunch(f"{ENTRY}_sum", arguments, sums, SUM_WARPS, 1))
        bodies.append(_function(f"{ENTRY}_sum", arguments, lines))
    text = _functions(writer, bodies)
    text = in_gluon(text) if plan.in_gluon else f"import triton\nimport triton.language as tl\n{text}"
    return TileSource(text, tuple(launches), workspace_bytes(plan), writer.rounds_to_tf32)


def workspace_of(kernel: TileKernel, target: Target, parameters: TileParameters) -> int:
    """Bytes of what a program's launches hand on. Raises UnsupportedTile where there is no such program."""
    form = form_of(parameters)
    if form.plans:
        return workspace_bytes(form.plan(form.view(kernel), target, parameters))
    _check(form, kernel, parameters)
    return _workspace(form, kernel, form.partials(kernel, target, parameters))


def _workspace(form: Form[Any, Any], kernel: TileKernel, partials: int) -> int:
    """Bytes of so many partial results."""
    return partials * (8 if "64" in form.partial_type(kernel) else 4) if partials else 0


def _check(form: Form[Any, Any], kernel: TileKernel, p: TileParameters) -> None:
    """Refuses what no kernel of this kind has; what the target allows is the legal set's to say."""
    _check_kernel(form, kernel)
    if kernel.reductions and not is_power_of_two(p.reduce_tile):
        raise UnsupportedTile("reduce_tile", "a power of two")
    if not is_power_of_two(p.num_warps) or p.num_stages < 1 or p.split < 1:
        raise UnsupportedTile("num_warps, num_stages or split")
    if p.split > 1 and not form.may_split(kernel):
        raise UnsupportedTile("split", "its reductions do not all give one value for each output from the same ranges")
    for field, is_wanted in _wanted(p).items():
        if is_wanted and field not in form.fields:
            raise UnsupportedTile(field, ONLY[field])
    form.check(kernel, p)
    if not fits_epilogue(kernel, p):
        raise UnsupportedTile("tile", "what is made of the result needs other columns in one block")
    if p.epilogue_parts not in (1, 2) or (p.epilogue_parts == 2 and p.tile[1] < 32):
        raise UnsupportedTile("epilogue_parts", "1, or 2 halves of at least 16 columns")
    if any(n >= len(kernel.loads) for n in (*p.evict_first, *p.evict_last)):
        raise UnsupportedTile("evict_first or evict_last", f"the kernel has {len(kernel.loads)} loads")


def _check_kernel(form: Form[Any, Any], kernel: TileKernel) -> None:
    """Refuses kernels that a form is not of."""
    if form.is_of_products and kernel.contraction is None:
        raise UnsupportedTile("form", "the kernel is no product of two operands with rows and columns")
    if form.is_of_attention != (kernel.attention is not None):
        raise UnsupportedTile("form", f"{form.name} of {'an' if kernel.attention else 'no'} attention")
    if form.is_of_rows != (kernel.rows is not None):
        raise UnsupportedTile("form", f"{form.name} of {'' if kernel.rows else 'no '}kernels over the same rows")
    if form.reduces != bool(kernel.reductions):
        raise UnsupportedTile("form", f"{form.name} with {len(kernel.reductions)} reductions")


def _wanted(p: TileParameters) -> dict[str, bool]:
    """Which of `ONLY` a program has."""
    return {
        "tail": p.tail > 1,
        "loads": p.loads != POINTER or p.warp_specialize,
        "persistent": p.persistent > 0,
        "epilogue_parts": p.epilogue_parts > 1,
        "read_early": p.read_early,
        "warp_specialize": p.warp_specialize,
    }


# ---- the module's text


def _arguments(kernel: TileKernel, *, workspace: str) -> tuple[Argument, ...]:
    found = [Argument(f"p{b.slot}", POINTERS[TYPES[b.dtype]], b.slot) for b in kernel.buffers]
    if workspace:
        found.append(Argument("workspace", POINTERS[workspace], WORKSPACE))
    found += [Argument(variable_name(v), "i32", None, v.arg.name) for v in kernel.variables]
    return tuple(found)


def _functions(writer: Writer, bodies: Sequence[str]) -> str:
    """Functions, behind the helpers that they call."""
    return "".join("\n" + helper for helper in writer.helpers.values()) + "".join("\n\n" + b for b in bodies)


def _function(name: str, arguments: tuple[Argument, ...], lines: Lines) -> str:
    head = f"@triton.jit\ndef {name}({', '.join(a.name for a in arguments)}):\n"
    return head + "".join(f"    {line}\n" for line in lines.text)
