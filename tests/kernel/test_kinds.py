"""The contract of every kind of schedule and of its spaces: what all others may rely on."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tinygrad import UOp
from tinygrad.uop.ops import AxisType, KernelInfo, Ops

from kcg.errors import ScheduleError
from kcg.kernel.kinds import (
    KINDS as ENTRIES,
)
from kcg.kernel.kinds import (
    Kind,
    Space,
    Unsupported,
    baseline_of,
    describe,
    kind_named,
    kind_of,
    parse,
    space_of,
    steps_of,
)
from kcg.kernel.program import Program
from kcg.kernel.source.body import source_body, source_schedule
from kcg.kernel.source.kernels import lower, view_of
from kcg.kernel.source.kind import SourceKind
from kcg.types import Region, Schedule
from tests.chains import X86, region_of
from tests.handwritten_kernels import COLUMNS, INNER, MATMUL, ROWS, kernel
from tests.kernels import empty, example_region
from tests.known_targets import KNOWN_TARGETS
from tests.waiting import PATIENCE_S

KINDS = tuple(map(str, ENTRIES))
FOREIGN = ("", "null", "1", '"a"', "{}", "[[1]]", '[["X",0,1.5]]', '[["X",0]]', "[" * 50_000, "not JSON")
STEPS = 5  # of a walk


def matmul(out: UOp, a: UOp, b: UOp) -> UOp:
    i, j, k = UOp.range(ROWS, 0), UOp.range(COLUMNS, 1), UOp.range(INNER, 2, axis_type=AxisType.REDUCE)
    product = a.reshape((ROWS, INNER))[i, k] * b.reshape((INNER, COLUMNS))[k, j]
    total = product.reduce(k, arg=(Ops.ADD, 0))
    return out.reshape((ROWS, COLUMNS))[i, j].store(total).end(i, j).sink(arg=KernelInfo(opts_to_apply=()))


def columns_first(out: UOp, a: UOp, b: UOp) -> UOp:
    i, j, k = UOp.range(ROWS, 1), UOp.range(COLUMNS, 0), UOp.range(INNER, 2, axis_type=AxisType.REDUCE)
    product = a.reshape((ROWS, INNER))[i, k] * b.reshape((INNER, COLUMNS))[k, j]
    total = product.reduce(k, arg=(Ops.ADD, 0))
    return out.reshape((ROWS, COLUMNS))[i, j].store(total).end(j, i).sink(arg=KernelInfo(opts_to_apply=()))


def _by_hand() -> Kind:
    view = view_of(MATMUL, X86)
    return SourceKind({MATMUL.id: [lower(kernel(one), view) for one in (matmul, columns_first)]})


@cache
def _norm() -> Region:
    return region_of(empty(6, 48).layernorm().contiguous())


NEEDS = {"tile": "triton"}
"""Packages without which a kind has no space."""
TARGETS = {"tile": KNOWN_TARGETS["sm_90"]}
ABLE: dict[str, Callable[[], Kind]] = {"source": _by_hand}
"""Kinds that have a space for `MATMUL` only after somebody gave them what to do with it."""


@cache
def space(name: str) -> Space:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"the kind {name} needs {NEEDS[name]}, which is not here")
    region = _norm() if name == "parts" else MATMUL
    found = ABLE.get(name, lambda: kind_named(name))().space(region, TARGETS.get(name, X86))
    assert not isinstance(found, Unsupported), found.reason
    return found


def walk(of: Space, rng: random.Random) -> list[Schedule]:
    """Schedules along random steps."""
    found = [of.start()]
    while len(found) <= STEPS and (step := of.sample(rng, found[-1])) is not None:
        found.append(step)
    return found


@pytest.fixture(params=KINDS)
def of(request: pytest.FixtureRequest) -> Space:
    return space(request.param)


@pytest.fixture
def met(of: Space) -> list[Schedule]:
    return list(dict.fromkeys(s for seed in range(4) for s in walk(of, random.Random(seed))))


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_has_the_name_that_its_schedules_carry(name: str) -> None:
    assert kind_named(name).name == name == space(name).start().kind


def test_what_is_parsed_is_what_was_written(of: Space, met: list[Schedule]) -> None:
    for schedule in met:
        assert parse(schedule.kind, schedule.body) == schedule
        assert kind_of(schedule).name == schedule.kind


@pytest.mark.parametrize("body", FOREIGN, ids=range(len(FOREIGN)))
@pytest.mark.parametrize("name", KINDS)
def test_a_foreign_body_is_refused_in_one_line(name: str, body: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        parse(name, body)
    assert str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 200
    assert describe(Schedule(name, body)) is not None, "a report may still show it"


def test_unknown_kinds_are_named() -> None:
    for asked in (kind_named, lambda name: parse(name, "[]"), lambda name: steps_of(Schedule(name, "[]"))):
        with pytest.raises(ScheduleError, match="unknown kind 'magic'"):
            asked("magic")
    assert describe(Schedule("magic", "[1]")) == "[1]"


def test_actions_are_labelled_legal_and_lead_on(of: Space, met: list[Schedule]) -> None:
    for schedule in met:
        actions = of.actions(schedule)
        assert [a.label for a in actions] == [a.label for a in of.actions(schedule)], "in a fixed order"
        assert len({a.label for a in actions}) == len(actions) and all(a.label for a in actions)
        for action in actions:
            assert action.schedule != schedule
    assert of.actions(of.start()), "a search can begin"
    assert len(met) > 1


def test_steps_do_not_lead_back(of: Space) -> None:
    for seed in range(4):
        way = walk(of, random.Random(seed))
        assert len(set(way)) == len(way)
        for before, after in itertools.pairwise(way):
            assert after in {a.schedule for a in of.actions(before)}, "what is drawn is one of the actions"


def test_what_is_met_applies(of: Space, met: list[Schedule]) -> None:
    near = [s for schedule in met[:4] for s in of.neighbours(schedule)]
    for schedule in (*met, *near):
        of.check(schedule)


def test_neighbours_are_other_programs_each_once_and_variants_are_among_them(of: Space, met: list[Schedule]) -> None:
    for schedule in met:
        keys = [of.key(s) for s in dict.fromkeys(of.neighbours(schedule))]
        variants = [of.key(s) for s in of.variants(schedule)]
        assert len(set(keys)) == len(keys) and len(set(variants)) == len(variants)
        assert of.key(schedule) not in keys and set(variants) <= set(keys)
    assert any(of.neighbours(schedule) for schedule in met)


def test_what_is_taken_over_is_legal_here(of: Space, met: list[Schedule]) -> None:
    for schedule in met:
        if (taken := of.transfer(schedule, of)) is not None:
            of.check(taken)
            assert of.key(taken) == of.key(schedule)
    assert hash(of.family()) == hash(of.family())


def test_equal_keys_are_the_same_program_and_alike(of: Space, met: list[Schedule]) -> None:
    seconds = [a.schedule for first in of.actions(of.start())[:6] for a in of.actions(first.schedule)]
    reached = [*met, *seconds, *(s for schedule in met for s in of.neighbours(schedule))]
    by_key: dict[str, list[Schedule]] = {}
    for schedule in dict.fromkeys(reached):
        by_key.setdefault(of.key(schedule), []).append(schedule)
        assert hash(of.groups(schedule)) is not None and hash(of.tile(schedule)) is not None
    pairs = [found[:2] for found in by_key.values() if len(found) > 1][:4]
    tree = of.start().kind == "tile"  # nothing is reached twice
    assert pairs or not seconds or tree, "of two steps, one is often the first"
    for one, other in pairs:
        assert of.compile(one).id == of.compile(other).id
        assert (of.alike(one), of.tile(one)) == (of.alike(other), of.tile(other))


def test_schedules_compile_to_programs_of_the_region(of: Space, met: list[Schedule]) -> None:
    for schedule in met[:3]:
        program = of.compile(schedule)
        assert (
            isinstance(program, Program) and program.launches and set(of.region.outputs or (0,)) <= set(program.outputs)
        )
        assert of.compile(schedule).id == program.id, "compiled again it is the same"


def test_names_are_for_tables_and_legends_are_words(of: Space, met: list[Schedule]) -> None:
    for schedule in met:
        assert of.name(schedule) and of.legend(schedule) and describe(schedule)
        assert isinstance(steps_of(schedule), tuple)
    assert len(set(map(describe, met))) == len(met), "tables tell them apart"


def test_what_predictors_see_is_one_row_for_each_or_a_reason(of: Space, met: list[Schedule]) -> None:
    refusals = of.refusals(met)
    assert len(refusals) == len(met) and all(0 <= chance <= 1 for chance in refusals)
    try:
        nests, rows = of.loop_nests(met), of.action_features(met[0])
    except ScheduleError as error:
        assert "written by hand" in str(error) or "tile program" in str(error)
        return
    assert len(nests) == len(met) and len(rows) == len(of.actions(met[0])) + 1
    assert np.isfinite(rows.features).all()


@pytest.mark.parametrize("name", KINDS)
def test_a_refusal_says_why(name: str) -> None:
    first, second = example_region("softmax.0"), example_region("softmax.1")
    several = Region((*first.kernels, *second.kernels), ((0, 1), (2, 0)), (2,))
    refused = kind_named(name).space(MATMUL if name == "parts" else several, X86)
    assert isinstance(refused, Unsupported) and refused.reason and "\n" not in refused.reason


def test_a_region_that_nobody_wrote_a_kernel_for_is_refused() -> None:
    refused = kind_named("source").space(MATMUL, X86)
    assert refused == Unsupported("no kernel was written by hand for it")


def test_a_kernel_written_for_another_region_does_not_apply() -> None:
    of = space("source")
    foreign = source_schedule(replace(source_body(of.start()), name="other"))
    with pytest.raises(ScheduleError, match="no kernel that was written"):
        of.check(foreign)


def test_the_baseline_of_a_region_is_what_tinygrad_does_to_it() -> None:
    assert baseline_of(MATMUL, X86) == space_of(MATMUL, X86).baseline() == space("source").baseline()


def test_kinds_are_loaded_only_when_somebody_asks_for_them() -> None:
    loaded = "(m for m in sys.modules if m.startswith(('kcg.', 'tinygrad', 'numpy')))"
    code = f"import sys, kcg.kernel.kinds; print(*{loaded})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert set(done.stdout.split()) == {
        "kcg.clang",
        "kcg.errors",
        "kcg.types",
        "kcg.kernel",
        "kcg.kernel.kinds",
    }
