"""The parts of a region: what a file may say, the space over them, and one program."""

from __future__ import annotations

import json
import random

import pytest
from tinygrad import Tensor

from kcg.errors import ScheduleError
from kcg.kernel.codec import ast_of
from kcg.kernel.composed import Part, checked, hazards, joined, parts_of, region_of_part, schedule_of_parts
from kcg.kernel.kinds import Unsupported, compile_region
from kcg.kernel.opts.schedule import RAW
from kcg.kernel.parts import KIND as PARTS
from kcg.kernel.program import Program, ProgramLaunch, Scratch, program_of_parts
from kcg.measure.verify import CheckedBench
from kcg.types import Region, Schedule, ScheduleKind, canonical_json, malformed
from tests.chains import X86, compiled_of, region_of
from tests.kernels import empty, example_region

ROWS, WIDTH = 6, 48


def norm(rows: int = ROWS, width: int = WIDTH) -> Region:
    """Buffers: 0 and 2 a value for each row, 1 the input, 3 the output."""
    return region_of(empty(rows, width).layernorm().contiguous())


def body_of(*rows: object) -> Schedule:
    return Schedule(ScheduleKind.PARTS, canonical_json(list(rows)))


def alone(*places: int) -> Schedule:
    return body_of(*([[place], "opts", "[]"] for place in places))


def test_the_baseline_is_every_kernel_alone_as_tinygrad_schedules_it() -> None:
    region = norm()
    space = PARTS.space(region, X86)
    parts = parts_of(space.baseline())
    assert [part.places for part in parts] == [(0,), (1,), (2,)] and space.start() == space.baseline()
    own = program_of_parts(region, [compiled_of(ast_of(kernel)) for kernel in region.kernels])
    assert space.compile(space.baseline()).id == own.id
    compiled = compile_region(region, space.baseline(), X86)
    assert isinstance(compiled, Program) and compiled.id == own.id == compiled.binary_hash
    assert compiled.outputs == (0, 2, 3) and [launch.args for launch in compiled.launches] == list(region.args)
    assert (compiled.global_size, compiled.local_size) == ((), ())


def test_a_schedule_of_one_kernel_is_compiled_to_a_binary() -> None:
    region = example_region("matmul_f32")
    compiled = compile_region(region, RAW, X86)
    program = program_of_parts(region, [compiled])
    assert program.binary_hash == compiled.binary_hash != program.id, "rows that are stored stay what they are"


def test_a_body_comes_back_from_a_file() -> None:
    schedule = PARTS.space(norm(), X86).baseline()
    stored = json.loads(json.dumps(schedule.body))
    assert PARTS.parse(stored) == schedule == schedule_of_parts(parts_of(schedule))
    grouped = schedule_of_parts([Part((0,), RAW), Part((1, 2), Schedule(ScheduleKind.TILE, "{}"))])
    assert grouped.body == '[[[0],"opts","[]"],[[1,2],"tile","{}"]]' and parts_of(grouped)[1].places == (1, 2)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("{}", "a list of"),
        ("[]", "a list of"),
        ("[[[0],\"opts\"]]", "part 0 of a schedule is not"),
        ("[[[0],\"opts\",[]]]", "part 0 of a schedule is not"),
        ("[[[],\"opts\",\"[]\"]]", "no places"),
        ("[[0,\"opts\",\"[]\"]]", "no places"),
        ("[[[true],\"opts\",\"[]\"]]", "no places"),
        ("[[[-1],\"opts\",\"[]\"]]", "no places"),
        ("[[[1000000],\"opts\",\"[]\"]]", "no places"),
        ("[[[1,0],\"opts\",\"[]\"]]", "out of order"),
        ("[[[0,0],\"opts\",\"[]\"]]", "out of order"),
        ("[[[0],\"opts\",\"[]\"],[[0],\"opts\",\"[]\"]]", "comes once"),
        ("[[[0],\"opts\",\"[]\"],[[2],\"opts\",\"[]\"]]", "comes once"),
        ("[[[0],\"parts\",\"[]\"]]", "unknown kind 'parts'"),
        ("[[[0],\"magic\",\"[]\"]]", "unknown kind 'magic'"),
        ("[[[0],\"tile\",\"{}\"]]", "part 0 of a schedule: its body is not of a format"),
        ("[[[0],\"opts\",\"[[1]]\"]]", "part 0 of a schedule: its body is not a list"),
        ("[[[0], \"opts\", \"[]\"]]", "canonical"),
        (json.dumps([[[0], "opts", "[" + 5000 * " " + "]"]] * 257), "a list of"),
    ],
)  # fmt: skip
def test_a_foreign_body_is_refused_in_one_line(body: str, says: str) -> None:
    with pytest.raises(ScheduleError, match=says) as caught:
        PARTS.parse(body)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


def test_the_order_of_the_parts_keeps_what_depends_on_what() -> None:
    region = norm()
    assert hazards(region) == {(0, 1), (0, 2), (1, 2)}
    for places in ((1, 0, 2), (0, 2, 1)):
        with pytest.raises(ScheduleError, match=r"runs call \d before call \d, which it depends on"):
            compile_region(region, alone(*places), X86)
    with pytest.raises(ScheduleError, match="of 2 calls, the region of 3"):
        checked(region, alone(0, 1))
    x, y = empty(ROWS, WIDTH), empty(ROWS, WIDTH)
    two = region_of((x + 1).contiguous(), (y * 2).contiguous())
    assert hazards(two) == set() and len(checked(two, alone(1, 0))) == 2, "they have nothing to do with each other"


def test_a_later_update_in_place_depends_on_what_was_read_before() -> None:
    state = empty(ROWS, WIDTH)
    before = (state * 2).contiguous()
    region = region_of(before, state.assign(state + 1))
    (pair,) = hazards(region)
    assert pair == (0, 1)


def test_some_calls_are_a_region_of_their_own() -> None:
    region = norm()
    inner, numbers = region_of_part(region, (1, 2))
    assert malformed(inner) == "" and numbers == (2, 1, 0, 3) and inner.args == ((0, 1, 2), (3, 1, 2, 0))
    assert inner.outputs == (3,), "the deviation is used by no other part"
    first, numbers = region_of_part(region, (0, 1))
    assert numbers == (0, 1, 2) and first.outputs == (0, 2), "both are used by the last one"
    one, numbers = region_of_part(region, (1,))
    assert one == Region((region.kernels[1],)) and numbers == region.args[1]


def test_programs_of_parts_become_one_with_their_workspaces() -> None:
    region = norm()
    inner, _ = region_of_part(region, (1, 2))
    parts = program_of_parts(inner, [compiled_of(ast_of(kernel)) for kernel in inner.kernels])
    launches = [ProgramLaunch(one.compiled, tuple({0: 4}.get(n, n) for n in one.args)) for one in parts.launches]
    hidden = Program(tuple(launches), 4, (Scratch(ROWS, "float"),))  # the deviation is a workspace
    whole = joined(region, [((0,), compiled_of(ast_of(region.kernels[0]))), ((1, 2), hidden)])
    assert [launch.args for launch in whole.launches] == [(0, 1), (4, 1, 0), (3, 1, 0, 4)]
    assert whole.scratch == hidden.scratch and whole.outputs == (0, 3)
    bench = CheckedBench(region, X86)
    assert bench.check(bench.launcher(whole), (), seeds=(1,)).passed


def test_a_step_changes_one_part_and_a_walk_is_legal() -> None:
    region = norm()
    space = PARTS.space(region, X86)
    rng, schedule, before = random.Random(0), space.start(), parts_of(space.start())
    for _ in range(4):
        after = space.sample(rng, schedule)
        assert after is not None
        parts = parts_of(after)
        assert sum(a != b for a, b in zip(before, parts, strict=True)) == 1
        assert after in [action.schedule for action in space.actions(schedule)]
        schedule, before = after, parts
    assert space.key(schedule) != space.key(space.start())
    program = space.compile(schedule)
    bench = CheckedBench(region, X86)
    assert bench.check(bench.launcher(program), (), seeds=(1,)).passed
    assert space.start() not in space.neighbours(space.start())
    labels = {action.label.split(":")[0] for action in space.actions(space.start())}
    assert labels <= {"0", "1", "2"} and len(labels) > 1


def test_what_is_reported_of_a_schedule_is_what_its_parts_say() -> None:
    region = norm()
    space = PARTS.space(region, X86)
    start = space.start()
    names = [own.name(schedule) for own, schedule in space.parts(start)]
    assert space.name(start) == f"3 kernels: {'; '.join(names)}" and space.legend(start).startswith(
        "3 kernels: reduce;"
    )
    assert [len(nests) for nests in space.loop_nests([start, start])] == [3, 3]
    (chance,) = space.refusals([start])
    assert 0 <= chance < 0.5
    rows, actions = space.action_features(start), space.actions(start)
    assert len(rows.features) == len(rows.axes) == len(actions) + 1 and rows.axes[-1, 0] == -1
    last = space.action_features(start, actions[-2:])
    assert (last.features == rows.features[-3:]).all() and (last.axes == rows.axes[-3:]).all()
    step = actions[-1]
    assert PARTS.steps(step.schedule)[-1] == step.label and PARTS.describe(step.schedule).count(";") == 2
    space.check(step.schedule)
    with pytest.raises(ScheduleError):
        space.check(body_of([[0], "opts", '[["UPCAST",0,7]]'], [[1], "opts", "[]"], [[2], "opts", "[]"]))
    assert space.tile(start) == tuple(s.tile(own) for s, own in space.parts(start))
    assert space.alike(start) != space.alike(space.actions(start)[0].schedule)
    assert hash(space.groups(start)) == hash(space.groups(start))


def test_a_schedule_is_taken_over_by_a_similar_region() -> None:
    one, other = PARTS.space(norm(), X86), PARTS.space(norm(ROWS * 2), X86)
    assert one.family() == other.family()
    assert one.family() != PARTS.space(region_of((empty(6, 8) @ empty(8, 6)).contiguous().softmax()), X86).family()
    schedule = one.sample(random.Random(3))
    assert schedule is not None
    taken = other.transfer(schedule, one)
    assert taken is not None and checked(other.region, taken)
    two = region_of((empty(4, 4) + 1).contiguous(), (empty(4, 4) * 2).contiguous())
    assert PARTS.space(two, X86).transfer(schedule, one) is None


def test_what_cannot_be_reported_is_refused() -> None:
    assert PARTS.space(example_region("matmul_f32"), X86) == Unsupported("a region of one kernel has no parts")
    space = PARTS.space(norm(), X86)
    with pytest.raises(ScheduleError, match="tile programs are for NVIDIA GPUs"):
        space.name(schedule_of_parts([Part((0, 1, 2), Schedule(ScheduleKind.TILE, "{}"))]))
    with pytest.raises(ScheduleError, match=r"calls \[1, 2\] have no schedules of kind opts: Opts are for one kernel"):
        space.name(schedule_of_parts([Part((0,), RAW), Part((1, 2), RAW)]))


def test_variables_reach_the_kernels_that_have_them() -> None:
    region = region_of(*_cache_update())
    assert len(region.kernels) == 2
    schedule = PARTS.space(region, X86).baseline()
    three, four = ((("position", n),) for n in (3, 4))
    program = compile_region(region, schedule, X86, variables=three, also=(four,))
    assert program.runs_at(four) and not program.runs_at((("position", 9),))
    bench = CheckedBench(region, X86)
    for values in (three, four):
        result = bench.check(bench.launcher(program.at(values)), values, seeds=(1,))
        assert result.passed, result.reason
    assert not bench.check(bench.launcher(program.at(four)), three, seeds=(1,)).passed


def _cache_update() -> tuple[Tensor, ...]:
    from tinygrad import Variable

    position = Variable("position", 0, 30).bind(3)
    cache = empty(1, 32, 2, 8)
    cache[:, position : position + 1].assign(empty(1, 1, 2, 8) + 1)
    return (cache[:, : position + 1].sum(1).contiguous(),)
