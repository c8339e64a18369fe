"""kcg's copies of tinygrad's steps do what tinygrad does: first states, hand-coded schedules, BEAM's cache, the JIT."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import tinygrad.codegen
import tinygrad.codegen.opt.search as tiny_search
import tinygrad.helpers
from tinygrad import Tensor
from tinygrad.engine import realize

from kcg.compat import beam, programs, scheduling
from kcg.compat.renderers import planning_renderer
from kcg.compat.tiny import Device, KernelInfo, Ops, Scheduler, UOp, dtypes, to_program
from kcg.kernel.codec import ast_of, kernel_of
from kcg.kernel.opts.schedule import Opt
from tests.kernels import all_examples, example_ast, example_region, kernels_of, on_targets
from tests.known_targets import KNOWN_TARGETS, X86

TARGETS = {"X86": X86, **KNOWN_TARGETS}


class Stop(BaseException):
    """Ends tinygrad's work once the test has seen what it wanted."""


def given_to_apply_opts(ast: UOp, renderer: Any, monkeypatch: pytest.MonkeyPatch) -> UOp:
    """The AST that tinygrad's own code generation hands to `apply_opts`."""
    seen: list[UOp] = []

    def capture(sink: UOp, _renderer: Any, beam: int = 0) -> UOp:
        seen.append(sink)
        raise Stop

    monkeypatch.setattr(tinygrad.codegen, "apply_opts", capture)
    with pytest.raises(Stop):
        tinygrad.codegen.full_rewrite_to_sink(ast, renderer)
    monkeypatch.undo()
    return seen[0]


@pytest.mark.parametrize(("target", "names"), on_targets(TARGETS, whole=("X86", "sm_90")))
def test_the_initial_state_and_the_hand_coded_schedule_are_tinygrads(
    target: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer = planning_renderer(TARGETS[target])
    for name in names:
        ast = scheduling.with_device(ast_of(example_region(name).kernel), TARGETS[target].device)
        theirs = Scheduler(given_to_apply_opts(ast, renderer, monkeypatch), renderer)
        theirs.convert_loop_to_global()
        state = scheduling.initial_state(ast, renderer)
        assert state.ast is theirs.ast, name
        done = tinygrad.codegen.opt.postrange.apply_opts(theirs.ast, renderer)
        assert scheduling.hand_coded(state) == tuple(map(scheduling.from_tiny, done.arg.applied_opts)), name


@pytest.mark.parametrize("name", ["matmul_f32", "softmax.0", "conv2d", "symbolic", "gelu"])
def test_the_hand_coded_schedule_is_what_a_program_records(name: str) -> None:
    renderer = planning_renderer(X86)
    ast = scheduling.with_device(ast_of(kernel_of(example_ast(name))), "CPU")
    program = to_program(ast, renderer)
    applied = tuple(map(scheduling.from_tiny, program.src[0].arg.applied_opts))
    assert scheduling.hand_coded(scheduling.initial_state(ast, renderer)) == applied


def test_reaching_a_schedule_does_not_change_its_parent() -> None:
    state = scheduling.initial_state(ast_of(kernel_of(example_ast("matmul_f32"))), planning_renderer(X86))
    before = state.ast
    after = scheduling.apply(state, (Opt("UPCAST", 0, 4),))
    scheduling.scheduled_ast(after)
    scheduling.kernel_name(after)
    assert state.ast is before
    assert state.applied_opts == []
    assert [scheduling.from_tiny(o) for o in after.applied_opts] == [Opt("UPCAST", 0, 4)]


@pytest.mark.parametrize("opt", [Opt("UPCAST", 0, 4), Opt("UNROLL", 1, 0), Opt("TC", 0, (-1, 2, 1)), Opt("SWAP", 0, 1)])
def test_opts_go_to_tinygrad_and_back(opt: Opt) -> None:
    assert scheduling.from_tiny(scheduling.to_tiny(opt)) == opt


# -- BEAM's disk cache


def beam_lookups(call: UOp, width: int, monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, Any]]:
    """The table and the key that tinygrad itself looks up when a program with `BEAM=width` compiles a kernel."""
    seen: list[tuple[str, dict[str, Any]]] = []

    def lookup(table: str, key: dict[str, Any]) -> None:
        seen.append((table, key))
        raise Stop

    monkeypatch.setattr(tiny_search, "diskcache_get", lookup)
    with pytest.raises(Stop):
        realize.compile_linear(UOp(Ops.LINEAR, src=(call,)), beam=width)
    monkeypatch.undo()
    return seen[0]


@pytest.mark.parametrize("names", all_examples())
@pytest.mark.parametrize(("place", "width"), [(0, 1), (1, 2), (2, 8)])
def test_the_cache_key_is_the_one_that_beam_looks_up(
    place: int, width: int, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each width on another third of the kernels."""
    renderer, compared = Device["CPU"].renderer, 0
    for name in names[place::3]:
        ast = example_ast(name)
        buffers = sorted((u for u in ast.toposort() if u.op is Ops.PARAM and u.arg.slot >= 0), key=lambda u: u.arg.slot)
        if any(isinstance(b.device, tuple) for b in buffers):
            continue  # a kernel on several devices has their names in its key: BEAM's cache cannot serve it
        call = ast.call(*[UOp.new_buffer("CPU", b.max_numel(), b.dtype) for b in buffers])
        expected = beam.cache_key(ast_of(example_region(name).kernel), width, "CPU", renderer)
        assert beam_lookups(call, width, monkeypatch) == ("beam_search", expected), name
        compared += 1
    assert compared >= 7


def test_the_cache_row_is_the_one_that_tinygrad_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What kcg writes under BEAM's key comes out of tinygrad's own `diskcache_get`, and a program then takes it."""
    (ast,) = kernels_of(Tensor.empty(24, 40) @ Tensor.empty(40, 32))
    renderer, opts = Device["CPU"].renderer, (Opt("UPCAST", 0, 4), Opt("UPCAST", 1, 2))
    key = beam.cache_key(ast_of(kernel_of(ast)), 3, "CPU", renderer)
    monkeypatch.setattr(tinygrad.helpers, "CACHEDB", str(tmp_path / "cache.db"))
    monkeypatch.setattr(tinygrad.helpers, "_db_connection", None)
    monkeypatch.setattr(tinygrad.helpers, "_db_tables", set())
    assert tinygrad.helpers.diskcache_get("beam_search", key) is None
    with sqlite3.connect(tmp_path / "cache.db") as connection:
        connection.execute(beam.create_table_sql(beam.cache_table()))
        values = [*(key[name] for name, _ in beam.KEY_COLUMNS), beam.cache_value(opts)]
        connection.execute(f"INSERT INTO '{beam.cache_table()}' VALUES({', '.join('?' * len(values))})", values)
    connection.close()
    assert tuple(map(scheduling.from_tiny, tinygrad.helpers.diskcache_get("beam_search", key))) == opts
    marked = scheduling.with_device(ast, "CPU").replace(arg=KernelInfo(beam=3))
    program = to_program(marked, renderer)
    assert tuple(map(scheduling.from_tiny, program.src[0].arg.applied_opts)) == opts
    tinygrad.helpers._db_connection.close()


def test_the_table_has_tinygrads_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`diskcache_put` would make the same table."""
    monkeypatch.setattr(tinygrad.helpers, "CACHEDB", str(tmp_path / "cache.db"))
    monkeypatch.setattr(tinygrad.helpers, "_db_connection", None)
    monkeypatch.setattr(tinygrad.helpers, "_db_tables", set())
    key = beam.cache_key(ast_of(kernel_of(example_ast("matmul_f32"))), 2, "CPU", Device["CPU"].renderer)
    tinygrad.helpers.diskcache_put("beam_search", key, [])
    (sql,) = tinygrad.helpers._db_connection.execute("SELECT sql FROM sqlite_master WHERE type = 'table'").fetchone()
    tinygrad.helpers._db_connection.close()
    ours = beam.create_table_sql(beam.cache_table()).replace("IF NOT EXISTS ", "")
    assert re.sub(r"[\s'\"]", "", sql).lower() == re.sub(r"[\s'\"]", "", ours).lower()


def test_a_jit_that_captures_its_first_call_gives_what_an_uncaptured_one_does() -> None:
    """Its memory is planned from the start: nothing that the function made contiguous outlives the call."""
    from kcg.compat.programs import captured_at_once

    def step(x: Tensor) -> Tensor:
        return ((x + 1).contiguous() * 2).contiguous().sum()

    jitted = captured_at_once(step)
    for numbers in ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]):
        given = Tensor(numbers, device="CPU").contiguous().realize()
        assert jitted(given).item() == pytest.approx(sum(2 * (n + 1) for n in numbers))
        assert jitted.captured is not None


@pytest.mark.parametrize(
    ("device", "dtype", "offset", "aligned"),
    [
        ("CUDA", "uint8", 4, False),
        ("CUDA", "uint8", 48, True),
        ("CUDA", "float32", 1, False),
        ("CUDA", "float32", 8, True),
        ("CPU", "uint8", 48, False),
        ("CPU", "float32", 16, True),
    ],
)
def test_whether_a_calls_buffers_are_aligned_is_reported_before_it_runs(
    device: str, dtype: str, offset: int, aligned: bool
) -> None:
    """Views as tinygrad's memory planner makes them: a part of one buffer, taken for another dtype."""
    base, whole = (UOp.new_buffer(device, 4096, getattr(dtypes, dtype)) for _ in range(2))
    call = UOp.sink().call(whole, base.shrink(((offset, offset + 256),)).bitcast(dtypes.float32))
    assert programs.is_aligned(call) is aligned
    assert programs.single_device(call) == device


def test_calls_in_a_row_are_timed_between_events_that_nobody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA, whose driver is made up here: five calls, six events in their order, one wait at the end."""
    from tinygrad.runtime.autogen import cuda

    done, made = list[str](), list[int]()

    def create(place: Any, flags: int) -> int:
        made.append(flags)
        done.append("create")
        return 0

    def elapsed(seconds: Any, begin: Any, end: Any) -> int:
        seconds._obj.value = 2.5  # milliseconds
        return 0

    def named(name: str) -> Any:
        return lambda *arguments: done.append(name) or 0

    for name in ("cuCtxSetCurrent", "cuEventRecord", "cuEventSynchronize", "cuEventDestroy_v2"):
        monkeypatch.setattr(cuda, name, named(name.removeprefix("cuEvent")))
    monkeypatch.setattr(cuda, "cuEventCreate", create)
    monkeypatch.setattr(cuda, "cuEventElapsedTime", elapsed)
    monkeypatch.setattr(programs, "Device", {"CUDA": type("Opened", (), {"context": None})()})
    found = programs.in_a_row_s("CUDA", lambda: done.append("call"), 5)
    assert found == [2.5e-3] * 5 and len(made) == 6
    sent = [one for one in done if one in ("Record", "call", "Synchronize")]
    assert sent == ["Record", *["call", "Record"] * 5, "Synchronize"] and done.count("Destroy_v2") == 6


def test_calls_in_a_row_are_timed_one_by_one_elsewhere() -> None:
    calls = list[int]()
    found = programs.in_a_row_s(Device.DEFAULT, lambda: calls.append(1), 3)
    assert len(calls) == 3 and len(found) == 3 and all(s >= 0 for s in found)
