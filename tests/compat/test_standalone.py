"""What an exported module does, as the module of kcg whose text it is: programs and Opts in place, and out again."""

from __future__ import annotations

import ast as python_ast
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tinygrad import Tensor, TinyJit, Variable, schedule
from tinygrad.engine import jit, realize

from kcg.compat import standalone
from kcg.compat.capture import choosing_opts
from kcg.compat.device import prepare
from kcg.compat.partition import LIVE, OVERLAP, USED
from kcg.compat.planning import before_planning
from kcg.compat.replacing import DEVICES, UNALIGNED
from kcg.compat.standalone import Found, Opened, install, opened_device, uninstall
from kcg.compat.tiny import Ops, OptOps, TinyOpt, UOp, to_program_cache
from kcg.handover.export import PARTS, code
from kcg.handover.installing import plain_program
from kcg.kernel.codec import ast_of
from kcg.kernel.program import Program, ProgramLaunch, program_of_parts
from kcg.measure.device_info import detect
from kcg.types import Region, Target
from tests.chains import X86, compiled_of, program_of, region_of, sequence_of
from tests.compat.test_replacing import ROWS, WIDTH, after, chain, fused, kinds, values
from tests.kernels import empty


def model(x: Tensor) -> Tensor:
    return ((x + 1) * 3).contiguous()


def in_two(device: str = "CPU", target: Target = X86) -> tuple[Region, Program]:
    """The model's only kernel, and two launches for it with a value between."""
    region = region_of(model(empty(ROWS, WIDTH, device=device)))
    given = {1: empty(ROWS, WIDTH, device=device)}
    program = program_of(region, given, lambda x: {0: ((x + 1).contiguous() * 3).contiguous()}, target=target)
    assert len(program.launches) == 2 and len(program.scratch) == 1
    return region, program


def found_for(*programs: tuple[Region, Program], opened: Opened | None = None, **others: Any) -> Found:
    opened = opened or opened_device("CPU")
    made = tuple((known(region), plain_program(region, program, aligned=True)) for region, program in programs)
    return Found("0.14.0", "", opened, made, others.pop("opts", {}), **others)


def known(region: Region) -> standalone.Region:
    """A region as an exported module knows it."""
    kernels = tuple(standalone.Kernel(ast_of(kernel).key.hex()) for kernel in region.kernels)
    return standalone.Region(key(region), kernels, region.args, region.outputs)


def key(region: Region) -> str:
    return ast_of(region.kernel).key.hex() if len(region.kernels) == 1 else region.id


@pytest.fixture(autouse=True)
def planned() -> Iterator[list[list[UOp]]]:
    """The bodies of the calls of each linear as tinygrad's planner gets it; afterwards nothing is in its way."""
    hooks = [(schedule, "memory_plan_rewrite"), (jit, "memory_plan_rewrite"), (realize, "lower_and_compile")]
    plain, seen = [getattr(module, name) for module, name in hooks], list[list[UOp]]()

    def keep(linear: UOp, _: str) -> UOp:
        seen.append([call.src[0] for call in linear.src])
        return linear

    with before_planning(keep):
        yield seen
        uninstall()
    assert [getattr(module, name) for module, name in hooks] == plain and not standalone.installed


def test_it_imports_nothing_of_kcg() -> None:
    imported = list(python_ast.walk(python_ast.parse(code())))
    names = {node.module or "" for node in imported if isinstance(node, python_ast.ImportFrom)}
    names |= {a.name for node in imported if isinstance(node, python_ast.Import) for a in node.names}
    assert "tinygrad.engine" in names and not [name for name in names if name.split(".")[0] == "kcg"]


def test_no_part_hides_a_name_of_another() -> None:
    """They are one module there. What two of them import is the same."""
    defined, imported = dict[str, str](), dict[str, str]()
    for part in PARTS:
        for node in python_ast.parse(inspect.getsource(importlib.import_module(f"kcg.compat.{part}"))).body:
            if isinstance(node, python_ast.ImportFrom):
                for alias in node.names:
                    where = f"{node.module}.{alias.name}"
                    assert imported.setdefault(alias.asname or alias.name, where) == where
            for name in names_of(node):
                assert defined.setdefault(name, part) == part, name
    assert not defined.keys() & imported.keys() - {n for n, where in imported.items() if where.startswith("kcg.")}


def names_of(node: python_ast.stmt) -> list[str]:
    """What a statement of a module defines."""
    if isinstance(node, python_ast.FunctionDef | python_ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, python_ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, python_ast.Name)]


# ---- programs


def test_programs_take_the_place_of_calls_eagerly_and_in_replays(planned: list[list[UOp]]) -> None:
    region, program = in_two()
    x, plain = values(), TinyJit(lambda a, b: (model(a).realize(), model(b).realize()))
    expected = [[out.numpy() for out in plain(values(n), values(n + 9))] for n in range(4)]
    install(found_for((region, program)))
    planned.clear()
    np.testing.assert_array_equal(model(x).numpy(), (x.numpy() + 1) * 3)
    assert kinds(planned[0]) == [Ops.PROGRAM, Ops.PROGRAM]
    step = TinyJit(lambda a, b: (model(a).realize(), model(b).realize()))
    for _ in range(2):
        step(values(), values(1))
    assert kinds(planned[-1]) == [Ops.PROGRAM] * 4, "the capture"
    assert standalone.installed[0].counts == {f"{key(region)[:12]} replaced": 5}
    uninstall()
    assert kinds(after(planned, lambda: model(values(3)).realize())) == [Ops.SINK], "nothing stays"
    for n in range(4):  # but what was captured
        for got, wanted in zip(step(values(n), values(n + 9)), expected[n], strict=True):
            np.testing.assert_array_equal(got.numpy(), wanted)


def test_each_call_has_a_workspace_of_its_own() -> None:
    calls, given, found = list[UOp](), (values(), values(1)), found_for(in_two())

    def keep(linear: UOp, _: str) -> UOp:
        calls.extend(linear.src)
        return linear

    with before_planning(keep):
        install(found)
        made = [model(x) for x in given]
        Tensor.realize(*made)
        uninstall()
    assert len(calls) == 4 and len({call.src[1] for call in calls}) == 4, "each writes memory of its own"
    for x, got in zip(given, made, strict=True):
        np.testing.assert_array_equal(got.numpy(), (x.numpy() + 1) * 3)


def test_variables_are_integers_behind_the_pointers() -> None:
    def part(x: Tensor, n: UOp) -> Tensor:
        return (x.shrink(((0, n), None)) + 1).contiguous().sum()

    n, x = Variable("n", 1, ROWS), values()
    region = region_of((empty(ROWS, WIDTH).shrink(((0, n.bind(3)), None)) + 1).sum())
    compiled = compiled_of(ast_of(region.kernel))
    program = Program((ProgramLaunch(compiled, compiled.slots),), 1 + max(compiled.slots))
    install(found_for((region, program)))
    step = TinyJit(lambda a, b: (a.shrink(((0, b), None)) + 1).sum().realize())
    found = [step(x, n.bind(value)).item() for value in (1, 4, 6, 2)]
    assert found == [(x.numpy()[:value] + 1).sum() for value in (1, 4, 6, 2)]
    assert standalone.installed[0].counts == {f"{key(region)[:12]} replaced": 2}


def test_what_is_not_safe_keeps_tinygrads_way(planned: list[list[UOp]]) -> None:
    region, program = in_two()
    rows = values()
    install(found_for((region, program)))
    sharded = Tensor.cat(values(), values(1)).shard(("CPU", "CPU:1"), axis=0).realize()
    np.testing.assert_array_equal(model(sharded).numpy()[:ROWS], (rows.numpy() + 1) * 3)
    buffer = Tensor(np.zeros(1 + ROWS * WIDTH, np.float32)).contiguous().realize()
    odd = buffer[1:].reshape(ROWS, WIDTH).contiguous().realize()
    np.testing.assert_array_equal(model(odd).numpy(), np.full((ROWS, WIDTH), 3, np.float32))
    name, counts = key(region)[:12], standalone.installed[0].counts
    assert counts == {f"{name} left: {DEVICES}": 1, f"{name} left: {UNALIGNED}": 1}
    np.testing.assert_array_equal(model(rows).numpy(), (rows.numpy() + 1) * 3)
    assert standalone.installed[0].counts[f"{name} replaced"] == 1


def test_devices_that_the_programs_are_not_for_keep_tinygrads_way(monkeypatch: pytest.MonkeyPatch) -> None:
    region, program = in_two()
    install(found_for((region, program)))
    (one,), there = standalone.installed, [values().to(f"CPU:{number}").realize() for number in (1, 2, 3)]
    here, load = opened_device("CPU"), one.load

    def opened(name: str) -> Opened:
        return replace(here, model="another") if name == "CPU:1" else here

    def loaded(device: str) -> None:
        if device == "CPU:2":
            raise RuntimeError("no image\nfor it")
        load(device)

    monkeypatch.setattr(standalone, "opened_device", opened)
    monkeypatch.setattr(one, "load", loaded)
    for x in there:
        np.testing.assert_array_equal(model(x).numpy(), (values().numpy() + 1) * 3)
    name = key(region)[:12]
    assert one.counts == {f"{name} left: {DEVICES}": 2, f"{name} replaced": 1}
    assert one.refused == {
        "CPU": "",
        "CPU:1": "the programs are not for it",
        "CPU:2": "they do not load there: no image for it",
        "CPU:3": "",
    }


def test_opts_are_left_too_on_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    region, _ = in_two()
    here = opened_device("CPU")
    install(found_for(opts={key(region): (("UPCAST", 0, 2),)}))
    monkeypatch.setattr(
        standalone, "opened_device", lambda name: replace(here, model="another") if name == "CPU:1" else here
    )
    for device, taken in (("CPU:1", False), ("CPU:2", True)):
        x = values().to(device).realize()
        to_program_cache.clear()
        model(x).realize()
        (program,) = to_program_cache.values()
        assert (program.src[0].arg.applied_opts == (TinyOpt(OptOps.UPCAST, 0, 2),)) == taken


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 2, 1), (1, 0, 2)])
def test_modules_that_are_uninstalled_in_any_order_leave_nothing_behind(order: tuple[int, ...]) -> None:
    """Each exported module is a module of its own, and none knows of the others."""
    hooks = [(schedule, "memory_plan_rewrite"), (jit, "memory_plan_rewrite"), (realize, "lower_and_compile")]
    before = [getattr(module, name) for module, name in hooks]
    region, program = in_two()
    found, text = found_for((region, program)), code()
    modules = []
    for number in range(len(order)):
        module = ModuleType(f"exported{number}")
        sys.modules[module.__name__] = module  # as its dataclasses ask for
        exec(compile(text, standalone.__file__, "exec"), vars(module))
        module.install(found)
        modules.append(module)
    for number in order:
        modules[number].uninstall()
        del sys.modules[modules[number].__name__]
        np.testing.assert_array_equal(model(values()).numpy(), (values().numpy() + 1) * 3)
    assert [getattr(module, name) for module, name in hooks] == before


def test_what_is_installed_inside_a_block_outlasts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in [
        (schedule, "memory_plan_rewrite"),
        (jit, "memory_plan_rewrite"),
        (realize, "lower_and_compile"),
    ]:
        monkeypatch.setattr(module, name, getattr(module, name))  # the block's own stay where they are
    region, program = in_two()
    seen, asked = list[UOp](), list[UOp]()

    def rewrite(linear: UOp, _: str) -> UOp:
        seen.append(linear)
        return linear

    with before_planning(rewrite), choosing_opts(asked.append):
        install(found_for((region, program)))
        (model(values()) + 7).realize()
    before = len(seen), len(asked)
    np.testing.assert_array_equal((model(values(1)) + 7).numpy(), (values(1).numpy() + 1) * 3 + 7)
    assert standalone.installed[0].counts == {f"{key(region)[:12]} replaced": 2}
    assert before == (len(seen), len(asked)) and min(before) > 0


def test_a_module_that_is_loaded_again_takes_out_all_that_it_put_in_place() -> None:
    install(found_for(in_two()))
    first, before = standalone.installed, dict(vars(standalone))
    try:
        again = importlib.reload(standalone)
        assert again.installed is first
    finally:
        vars(standalone).update(before)  # others hold its classes


def test_buffers_that_share_memory_are_not_two() -> None:
    """A kernel from one part of a buffer into another: as far apart as it is long, and half of that."""
    region = region_of((empty(32) * 2).contiguous())
    compiled = compiled_of(ast_of(region.kernel))
    found = found_for((region, Program((ProgramLaunch(compiled, compiled.slots),), 2)))
    base, x = Tensor(np.arange(80, dtype=np.float32)).contiguous().realize(), empty(32).realize()

    def rebound(begin: int) -> Callable[[UOp, str], UOp]:
        def rewrite(linear: UOp, _: str) -> UOp:
            (call,) = linear.src
            given = (base.uop.buf_uop[i : i + 32] for i in (0, begin))
            return linear.replace(src=(call.replace(src=(call.src[0], *given)),))

        return rewrite

    for begin, reason in ((32, "replaced"), (48, "replaced"), (16, f"left: {OVERLAP}")):
        install(found)
        with before_planning(rebound(begin)):
            (x * 2).contiguous().realize()
        assert standalone.installed[0].counts == {f"{key(region)[:12]} {reason}": 1}
        uninstall()


def test_what_the_author_scheduled_stays(planned: list[list[UOp]]) -> None:
    region, program = in_two()

    def fixed(linear: UOp, _: str) -> UOp:
        asts = [call.src[0].replace(arg=replace(call.src[0].arg, opts_to_apply=())) for call in linear.src]
        calls = [call.replace(src=(ast, *call.src[1:])) for call, ast in zip(linear.src, asts, strict=True)]
        return linear.replace(src=tuple(calls))

    install(found_for((region, program)))
    x = values()
    with before_planning(fixed):
        np.testing.assert_array_equal(model(x).numpy(), (x.numpy() + 1) * 3)
    assert kinds(planned[-1]) == [Ops.SINK] and not standalone.installed[0].counts


# ---- regions of several calls


def in_one(device: str = "CPU", target: Target = X86) -> tuple[Region, Program]:
    """A chain of three kernels, and one launch for them. Buffers: 0 first, 1 x, 2 second, 3 the output."""
    region = region_of(chain(empty(ROWS, WIDTH, device=device)))
    given = {1: empty(ROWS, WIDTH, device=device)}
    return region, program_of(region, given, lambda x: {3: fused(x)}, target=target)


def alone_of(region: Region, place: int) -> tuple[Region, Program]:
    """One kernel of a region as a program of its own."""
    compiled = compiled_of(ast_of(region.kernels[place]), plain=True)
    program = Program((ProgramLaunch(compiled, compiled.slots),), 1 + max(compiled.slots))
    return Region((region.kernels[place],)), program


def counts() -> dict[str, int]:
    (one,) = standalone.installed
    return dict(one.counts)


def test_several_calls_become_one_eagerly_and_in_replays(planned: list[list[UOp]]) -> None:
    region, program = in_one()

    def step(x: Tensor, y: Tensor) -> Tensor:
        return (chain(x) + chain(y)).contiguous().realize()

    plain, tuned = TinyJit(step), TinyJit(step)
    expected = [plain(values(n), values(n + 9)).numpy() for n in range(4)]
    install(found_for((region, program)))
    assert kinds(after(planned, lambda: chain(values()).realize())) == [Ops.PROGRAM]
    for _ in range(2):
        tuned(values(), values(1))
    assert kinds(planned[-1]) == [Ops.PROGRAM, Ops.PROGRAM, Ops.SINK], "the capture"
    assert counts() == {f"{region.id[:12]} replaced": 5}
    uninstall()
    assert kinds(after(planned, lambda: chain(values(3)).realize())) == [Ops.SINK] * 3, "nothing stays"
    for n in range(4):  # but what was captured
        np.testing.assert_array_equal(tuned(values(n), values(n + 9)).numpy(), expected[n])


def test_a_program_of_several_launches_has_a_workspace_for_each_set_of_calls(planned: list[list[UOp]]) -> None:
    region, _ = in_one()
    build = {1: empty(ROWS, WIDTH)}
    made = program_of(region, build, lambda x: {3: ((x + 1).contiguous().flip(1) * 2).flip(0) - (x + 1)})
    assert len(made.launches) == 2 and len(made.scratch) == 1
    calls, x, y = list[UOp](), values(), values(1)

    def keep(linear: UOp, _: str) -> UOp:
        calls.extend(linear.src)
        return linear

    with before_planning(keep):
        install(found_for((region, made)))
        one, two = chain(x), chain(y)
        Tensor.realize(one, two)
        uninstall()
    assert len(calls) == 4 and len({call.src[1] for call in calls}) == 4, "each writes memory of its own"
    for given, got in ((x, one), (y, two)):
        np.testing.assert_array_equal(got.numpy(), fused(given).numpy())


def test_a_value_that_is_alive_or_read_elsewhere_leaves_the_calls_to_what_is_for_each(
    planned: list[list[UOp]],
) -> None:
    region, program = in_one()
    last, own = alone_of(region, 2)
    opts = {ast_of(region.kernels[1]).key.hex(): (("UPCAST", 0, 2),)}
    install(found_for((region, program), (last, own), opts=opts))
    x = values()
    first = (x + 1).contiguous()
    second = (first.flip(1) * 2).contiguous()
    to_program_cache.clear()
    out = (second.flip(0) - first).contiguous().realize()  # `first` and `second` are still there
    assert kinds(planned[-1]) == [Ops.SINK, Ops.SINK, Ops.PROGRAM]
    assert any(p.src[0].arg.applied_opts == (TinyOpt(OptOps.UPCAST, 0, 2),) for p in to_program_cache.values())
    np.testing.assert_array_equal(out.numpy(), fused(x).numpy())
    np.testing.assert_array_equal(second.numpy(), ((x + 1).flip(1) * 2).numpy())
    assert counts() == {f"{region.id[:12]} left: {LIVE}": 1, f"{key(last)[:12]} replaced": 1}

    def reading(x: Tensor) -> tuple[Tensor, Tensor]:
        first = (x + 1).contiguous()
        second = (first.flip(1) * 2).contiguous()
        return (second.flip(0) - first).contiguous(), (second * 5).contiguous()

    made = reading(x)
    Tensor.realize(*made)
    np.testing.assert_array_equal(made[1].numpy(), ((x + 1).flip(1) * 10).numpy())
    assert counts()[f"{region.id[:12]} left: {USED}"] == 1 and f"{region.id[:12]} replaced" not in counts()
    chain(x).realize()
    assert counts()[f"{region.id[:12]} replaced"] == 1 and counts()[f"{key(last)[:12]} replaced"] == 2


def test_regions_that_are_named_first_go_first(planned: list[list[UOp]]) -> None:
    region, program = in_one()
    pair = sequence_of(chain(empty(ROWS, WIDTH))).region(0, 1)
    built = program_of(
        pair,
        {1: empty(ROWS, WIDTH)},
        lambda x: {0: (first := (x + 1).contiguous()), 2: (first.flip(1) * 2).contiguous()},
    )
    for order in ((region, pair), (pair, region)):
        install(found_for(*((one, {region: program, pair: built}[one]) for one in order)))
        np.testing.assert_array_equal(chain(values()).numpy(), fused(values()).numpy())
        assert counts() == {f"{order[0].id[:12]} replaced": 1}, "what another took is not left for a reason"
        uninstall()


def test_a_region_may_run_its_own_kernels_with_opts(planned: list[list[UOp]]) -> None:
    region, _ = in_one()
    opts = ((("UPCAST", 0, 2),), (("UPCAST", 1, 4),), ())
    elsewhere = {ast_of(kernel).key.hex(): (("UPCAST", 0, 3),) for kernel in region.kernels}
    install(replace(found_for(opts=elsewhere), regions=((known(region), opts),)))
    x, expected = values(), fused(values()).numpy()
    to_program_cache.clear()
    np.testing.assert_array_equal(chain(x).numpy(), expected)
    wanted = {tuple(TinyOpt(OptOps[name], axis, arg) for name, axis, arg in one) for one in opts}
    assert {p.src[0].arg.applied_opts for p in to_program_cache.values()} == wanted
    assert counts() == {f"{region.id[:12]} replaced": 1}


def test_a_region_has_any_values_of_variables_and_no_other_shapes(planned: list[list[UOp]]) -> None:
    def part(x: Tensor, n: UOp) -> Tensor:
        return ((x.shrink(((0, n), None)) + 1).contiguous() * 2).contiguous().sum()

    n, x = Variable("n", 1, ROWS), values()
    region = sequence_of(part(empty(ROWS, WIDTH), n.bind(3))).region(0, 1)
    program = program_of_parts(region, [compiled_of(ast_of(kernel)) for kernel in region.kernels])
    install(found_for((region, program), in_one()))
    step = TinyJit(lambda a, b: part(a, b).realize())
    found = [step(x, n.bind(value)).item() for value in (1, 4, 6, 2)]
    assert found == [((x.numpy()[:value] + 1) * 2).sum() for value in (1, 4, 6, 2)]
    assert counts() == {f"{region.id[:12]} replaced": 2}
    other = values(rows=ROWS - 2)
    assert kinds(after(planned, lambda: chain(other).realize())) == [Ops.SINK] * 3
    assert counts() == {f"{region.id[:12]} replaced": 2}


def test_regions_on_another_device_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    region, program = in_one()
    here = opened_device("CPU")
    install(found_for((region, program)))
    monkeypatch.setattr(
        standalone, "opened_device", lambda name: replace(here, model="another") if name == "CPU:1" else here
    )
    for device in ("CPU:1", "CPU:2"):
        x = values().to(device).realize()
        np.testing.assert_array_equal(chain(x).numpy(), fused(values()).numpy())
    assert counts() == {f"{region.id[:12]} left: {DEVICES}": 1, f"{region.id[:12]} replaced": 1}


def test_what_is_installed_twice_is_there_once(planned: list[list[UOp]]) -> None:
    found, x = found_for(in_one()), values()
    install(found)
    install(found)
    assert kinds(after(planned, lambda: chain(x).realize())) == [Ops.PROGRAM]
    assert [one.counts.total() for one in standalone.installed] == [0, 1]
    uninstall()
    assert kinds(after(planned, lambda: chain(x).realize())) == [Ops.SINK] * 3


# ---- Opts


def test_opts_are_taken_where_tinygrad_compiles(planned: list[list[UOp]]) -> None:
    region = region_of(model(empty(ROWS, WIDTH)))
    install(found_for(opts={key(region): (("UPCAST", 0, 4),)}))
    x = values()
    np.testing.assert_array_equal(model(x).numpy(), (x.numpy() + 1) * 3)
    programs = [p for p in to_program_cache.values() if p.src[0].arg.applied_opts == (TinyOpt(OptOps.UPCAST, 0, 4),)]
    assert programs and kinds(planned[-1]) == [Ops.SINK]


# ---- what it refuses


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            lambda f: replace(f, tinygrad="0.13.0"),
            r"^tinygrad: made with '0.13.0', imported is .0.14.0.: install",
        ),
        (lambda f: replace(f, opened=replace(f.opened, model="another")), r"^model: made for 'another', here it is"),
        (lambda f: replace(f, opened=replace(f.opened, device="CUDA")), r"^device: .*: set DEV=CUDA$"),
        (lambda f: replace(f, driver="1.2.3"), r"^driver: made with '1.2.3', here it is .*: run the search on this"),
    ],
)
def test_what_was_made_elsewhere_is_refused_in_a_line(change: Callable[[Found], Found], line: str) -> None:
    with pytest.raises(ImportError, match=line) as caught:
        install(change(found_for(in_two())))
    assert "\n" not in str(caught.value)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # tinygrad unloads what did not load
def test_what_does_not_load_is_refused_before_anything_is_in_place() -> None:
    prepare("CUDA")
    region, program = in_two("CUDA", detect("CUDA", 1)[0])
    found = found_for((region, program), opened=opened_device("CUDA"))
    ((where, made),) = found.regions
    made = replace(made, launches=(replace(made.launches[0], code=b"no machine code\0"),))
    with pytest.raises(ImportError, match=r"^its machine code does not load: "):
        install(replace(found, regions=((where, made),)))
    assert not standalone.installed


@pytest.mark.gpu
def test_programs_are_nodes_of_a_cuda_graph() -> None:
    prepare("CUDA")
    target, toolchain = detect("CUDA", 1)
    (region, program), (several, fused_program) = in_two("CUDA", target), in_one("CUDA", target)
    found = found_for((several, fused_program), (region, program), opened=opened_device("CUDA"))
    assert standalone.nvidia_driver() == toolchain.driver

    def step(x: Tensor, y: Tensor) -> Tensor:
        return (model(x) + chain(y)).contiguous().realize()

    plain, tuned = TinyJit(step), TinyJit(step)
    pairs = [[values(seed).to("CUDA").realize(), values(seed + 9).to("CUDA").realize()] for seed in range(6)]
    install(replace(found, driver=toolchain.driver))
    for _ in range(2):
        tuned(*pairs[0])
    assert counts() == {f"{one[:12]} replaced": 2 for one in (key(region), several.id)}
    uninstall()
    (graph,) = tuned.captured.linear.src
    assert kinds([call.src[0] for call in graph.src[0].src[0].src]) == [Ops.PROGRAM] * 4
    for pair in pairs * 5:
        assert tuned(*pair).numpy().tobytes() == plain(*pair).numpy().tobytes()
