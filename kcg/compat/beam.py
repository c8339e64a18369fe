"""tinygrad's BEAM: running it as it is, and the rows of its disk cache."""

from __future__ import annotations

from typing import Any

from kcg.compat.scheduling import from_tiny, initial_state, with_device
from kcg.compat.tiny import Context, Device, KernelInfo, UOp, args_from_ast
from kcg.types import Schedule


def run_beam(ast: UOp, width: int) -> tuple[Schedule, int]:
    """BEAM of `width` on a normalised AST on the default device, without its cache.

    Returns the schedule and how many unique binaries were timed, the figure that its cost is counted in.
    """
    from tinygrad.codegen.opt import search

    renderer = Device[Device.DEFAULT].renderer
    state = initial_state(with_device(ast, renderer.target.device), renderer)
    buffers, variables = args_from_ast(state.ast, renderer.target.device)
    timed = 0
    original = search._time_program

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal timed
        timed += 1
        return original(*args, **kwargs)

    search._time_program = counted
    try:
        with Context(DEBUG=0, BEAM=0):
            found = search.beam_search(state, buffers, variables, width, True, True)
    finally:
        search._time_program = original
    return Schedule.from_opts([from_tiny(o) for o in found.applied_opts]), timed


def cache_key(ast: UOp, width: int, device: str, renderer: Any) -> dict[str, Any]:
    """The key under which tinygrad's BEAM of `width` keeps the Opts of a normalised AST on `device`.

    `pm_beam` writes the width into the kernel's info before the search, so the AST's own key holds it too.
    """
    marked = with_device(ast, device).replace(arg=KernelInfo(beam=width))
    state = initial_state(marked, renderer)
    return {
        "ast": state.ast.key, "amt": width, "allow_test_size": True, "device": renderer.target.device,
        "suffix": renderer.suffix,
    }  # fmt: skip
