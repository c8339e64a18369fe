"""tinygrad's BEAM: running it as it is, and the rows of its disk cache."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kcg.compat.opts import Opt
from kcg.compat.scheduling import from_tiny, initial_state, to_tiny, with_device
from kcg.compat.tiny import Context, Device, KernelInfo, UOp, args_from_ast


def run_beam(ast: UOp, width: int) -> tuple[tuple[Opt, ...], int]:
    """BEAM of `width` on a normalised AST on the default device, without its cache.

    Returns its Opts and how many unique binaries were timed, the figure that its cost is counted in.
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
    return tuple(from_tiny(o) for o in found.applied_opts), timed


@contextlib.contextmanager
def searching_nothing() -> Iterator[None]:
    """Inside the block BEAM takes what its cache holds; other kernels have tinygrad's hand-coded schedule."""
    from tinygrad.codegen.opt import heuristic, search
    from tinygrad.helpers import diskcache_get

    original = search.beam_search

    def known(scheduler: Any, buffers: Any, values: Any, width: int, allow_test_size: bool = True, *rest: Any) -> Any:
        target = scheduler.ren.target.device
        key = {"ast": scheduler.ast.key, "amt": width, "allow_test_size": allow_test_size, "device": target}
        if diskcache_get("beam_search", {**key, "suffix": scheduler.ren.suffix}) is None:
            return heuristic.hand_coded_optimizations(scheduler)
        return original(scheduler, buffers, values, width, allow_test_size, *rest)

    search.beam_search = known
    try:
        yield
    finally:
        search.beam_search = original


def cache_key(
    ast: UOp, width: int, device: str | tuple[str, ...] | None, renderer: Any, *, name: str = ""
) -> dict[str, Any]:
    """The key under which tinygrad's BEAM of `width` keeps the Opts of a normalised AST on `device`, on several that
    share its work, or on none, which custom kernels name; `name` is its author's, if that gave it one.

    `pm_beam` writes the width into the kernel's info before the search, so the AST's own key holds it too.
    """
    marked = with_device(ast, device).replace(arg=KernelInfo(name=name or KernelInfo().name, beam=width))
    state = initial_state(marked, renderer)
    return {
        "ast": state.ast.key,
        "amt": width,
        "allow_test_size": True,
        "device": renderer.target.device,
        "suffix": renderer.suffix,
    }


KEY_COLUMNS = (
    ("ast", "blob"),
    ("amt", "integer"),
    ("allow_test_size", "integer"),
    ("device", "text"),
    ("suffix", "text"),
)
"""The columns of the cache's primary key with their types, in the order of `cache_key`."""


def cache_table() -> str:
    """The table of tinygrad's disk cache that holds what BEAM found: `beam_search_22`."""
    from tinygrad.helpers import VERSION

    return f"beam_search_{VERSION}"


def create_table_sql(table: str) -> str:
    """The statement with which `diskcache_put` makes the table of BEAM."""
    columns = ", ".join(f"{name} {kind}" for name, kind in KEY_COLUMNS)
    names = ", ".join(name for name, _ in KEY_COLUMNS)
    return f"CREATE TABLE IF NOT EXISTS '{table}' ({columns}, val blob, PRIMARY KEY ({names}))"


def default_cache_db() -> Path:
    """tinygrad's own disk cache: `CACHEDB`, else a file in the user's cache folder."""
    from tinygrad.helpers import CACHEDB

    return Path(CACHEDB)


def cache_value(opts: tuple[Opt, ...]) -> bytes:
    """What BEAM's cache keeps for a kernel that takes `opts`. kcg only ever writes such pickles, it never reads one."""
    return pickle.dumps([to_tiny(o) for o in opts])
