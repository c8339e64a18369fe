"""The text of a tile program from its plan: the functions of its module, and how they are launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kcg.kernel.generator import GENERATOR_VERSION
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.tile.emit import POINTERS, TYPES, Lines, Writer
from kcg.kernel.tile.forms import REGISTRY, plan_of
from kcg.kernel.tile.gluon import in_gluon
from kcg.kernel.tile.naming import readable
from kcg.kernel.tile.parameters import TileParameters
from kcg.kernel.tile.plan import TilePlan, describe, workspace_bytes
from kcg.kernel.tile.program import WORKSPACE, Argument, TileLaunch, TileSource
from kcg.kernel.tile.split import SUM_WARPS
from kcg.kernel.tile.tiles import variable_name
from kcg.kernel.tile.views import View
from kcg.types import Region, Target

ENTRY = "tile_kernel"


def generate(region: Region, target: Target, parameters: TileParameters, *, interpreted: bool = False) -> TileSource:
    """The tile program of a region. Raises UnsupportedTile, with the construct that is in the way."""
    return generate_kernel(read_region(region), target, parameters, interpreted=interpreted)


def generate_kernel(
    kernel: TileKernel, target: Target, parameters: TileParameters, *, interpreted: bool = False, named: bool = True
) -> TileSource:
    """See `generate`; of a kernel that is read already. What is not `named` is for nobody to read: programs are the
    same where that text is."""
    plan = plan_of(kernel, target, parameters)
    made = written(plan, interpreted=interpreted, named=named)
    return replace(made, header=_header(plan, parameters)) if named else made


def written(plan: TilePlan, *, interpreted: bool = False, named: bool = True) -> TileSource:
    """The text of a plan, and its launches. Raises UnsupportedTile where a value has no expression."""
    form, kernel, fast_math = REGISTRY[plan.form], plan.view.kernel, plan.fast_math and plan.ptx
    writer = Writer(
        kernel, interpreted=interpreted, fast_math=fast_math, evictions=plan.evictions, ptx=plan.ptx, style=plan.style
    )
    main = form.write(plan, writer)
    arguments = _arguments(plan.view, workspace=plan.partial_type if plan.partials else "")
    first = TileLaunch(
        ENTRY, arguments, plan.programs, plan.num_warps, plan.num_stages, plan.maxnreg, writer.has_descriptors
    )
    launches, bodies = [first], [_function(ENTRY, arguments, main)]
    if plan.partials:
        lines, sums = form.write_second(plan, writer)
        launches.append(TileLaunch(f"{ENTRY}_sum", arguments, sums, SUM_WARPS, 1))
        bodies.append(_function(f"{ENTRY}_sum", arguments, lines))
    text = _functions(writer, bodies)
    is_plain = not plan.in_gluon or (interpreted and plan.by_layouts)
    text = in_gluon(text) if not is_plain else f"import triton\nimport triton.language as tl\n{text}"
    text = readable(text, plan.view.buffers) if named else text
    return TileSource(text, tuple(launches), workspace_bytes(plan), writer.rounds_to_tf32)


# ---- the module's text


def _header(plan: TilePlan, parameters: TileParameters) -> str:
    """What the program is, as comments: its form, the kernel's buffers, what made it, and its parameters."""
    names, kernel = plan.view.buffers, plan.view.kernel
    buffers = ", ".join(f"{names[b.slot]} ({TYPES[b.dtype]}, {b.size})" for b in kernel.buffers)
    return f"# {describe(plan)}\n# {buffers}\n# kcg, generator {GENERATOR_VERSION}: {parameters.to_json()}\n"


def _arguments(view: View, *, workspace: str) -> tuple[Argument, ...]:
    kernel = view.kernel
    found = [Argument(view.buffers[b.slot], POINTERS[TYPES[b.dtype]], b.slot) for b in kernel.buffers]
    if workspace:
        found.append(Argument("workspace", POINTERS[workspace], WORKSPACE))
    found += [Argument(variable_name(v), "i32", None, v.arg.name) for v in kernel.variables]
    return tuple(found)


def _functions(writer: Writer, bodies: Sequence[str]) -> str:
    """Functions, behind the helpers that they call."""
    return "".join("\n" + helper for helper in writer.helpers.values()) + "".join("\n\n" + b for b in bodies)


def _function(name: str, arguments: tuple[Argument, ...], lines: Lines) -> str:
    """A function, whose buffers have their names already."""
    head = f"@triton.jit\ndef {name}({', '.join(a.name for a in arguments)}):\n"
    return head + "".join(f"    {line}\n" for line in lines.text)
