"""What a campaign promises: who draws what, that it resumes and shards, and that tables hold what they declare."""

from __future__ import annotations

import math
import random
import sqlite3
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from kcg.campaign.generate import generate_here
from kcg.campaign.samplers import KernelState, beam_level, beam_winner, sampler
from kcg.campaign.sampling import LONG_SHARE, DrawJob, Known, draw
from kcg.campaign.settings import DEFAULT_MIX, CampaignSettings, parse_mix, parse_shard
from kcg.campaign.tables import TableTask, replay_table, table_calls
from kcg.campaign.tasks import Drawing, KernelTask, chosen_specs, distinct_calls
from kcg.campaign.workers import generate
from kcg.dataset.__main__ import main as dataset
from kcg.dataset.choices import HAND_CODED
from kcg.dataset.journal import Journal
from kcg.errors import DataError, DeviceError, UsageError
from kcg.kernel.codec import kernel_of
from kcg.kernel.kinds import LONG_UOPS
from kcg.kernel.opts.lattice import lattice, prefixes
from kcg.kernel.opts.schedule import RAW, opts_of, schedule_of
from kcg.kernel.opts.space import KernelSpace
from kcg.measure.protocol import PROTOCOL
from kcg.measure.service import MeasureService
from kcg.predictor.choice import check_choice
from kcg.predictor.roofline import Roofline
from kcg.provenance import provenance
from kcg.search.replay import FILE, read_tables
from kcg.types import Measurement, Region, Schedule, Status, Target, Workload, WorkloadCall
from tests.commands import ended
from tests.kernels import empty, kernels_of
from tests.known_targets import KNOWN_TARGETS
from tests.slow import first

H200 = KNOWN_TARGETS["sm_90"]
MIX = tuple(DEFAULT_MIX.items())


@pytest.fixture(scope="module")
def call() -> WorkloadCall:
    (ast,) = kernels_of((empty(64, 96) @ empty(96, 48)).relu())
    return WorkloadCall(Region((kernel_of(ast),)), 1)


@pytest.fixture(scope="module")
def space(call: WorkloadCall) -> KernelSpace:
    return KernelSpace(call.region, H200)


def cost(space: KernelSpace, schedule: Schedule) -> float:
    """A time of its own for every kernel, the same whenever asked."""
    return 1e-5 * (1 + random.Random(space.key(schedule)).random() ** 4)


def measured(call: WorkloadCall, space: KernelSpace, schedule: Schedule, who: str) -> Measurement:
    seconds = cost(space, schedule)
    return Measurement(call.region.id, schedule, "t", "c", 1, Status.OK, samples_s=(seconds,), sampler=who)


def test_a_kernel_that_is_unjudged_draws_no_more(call: WorkloadCall, space: KernelSpace) -> None:
    task = KernelTask(call, H200, wanted=10, mix=MIX, seed=0)
    row = replace(measured(call, space, RAW, "random"), samples_s=(), reason="element 7 is 1, not 2")
    task.record(replace(row, status=Status.WRONG))
    assert task.next_draw() is not None, "another schedule may be right"
    task.record(replace(row, status=Status.UNJUDGED))
    assert task.next_draw() is None


def run_all(task: KernelTask, space: KernelSpace, *, batches: int = 1000) -> list[tuple[Schedule, str]]:
    drawn: list[tuple[Schedule, str]] = []
    while batches and (more := task.next_draw()) is not None:
        function, job = more
        batch = [(choice.schedule, choice.sampler) for choice in task.drawn(function(job))]
        for schedule, who in batch:
            task.record(measured(task.call, space, schedule, who))
        drawn += batch
        batches -= 1
    return drawn


def test_every_sampler_has_its_share_and_nothing_comes_twice(call: WorkloadCall, space: KernelSpace) -> None:
    drawn = run_all(KernelTask(call, H200, wanted=60, mix=MIX, seed=1), space)
    assert [who for _, who in drawn[:2]] == [HAND_CODED, "raw"]
    assert len({space.key(schedule) for schedule, _ in drawn}) == len(drawn)
    counts = Counter(who for _, who in drawn)
    for who, share in MIX:
        assert counts[who] <= round(share * 58)
        if who.startswith("walk"):
            assert counts[who] >= round(share * 58) - 1, "there are thousands of schedules to walk to"
    assert counts["beam:2/8"] > 8, "a second level"


def test_a_resumed_task_goes_on_where_the_first_ended(call: WorkloadCall, space: KernelSpace) -> None:
    first = run_all(KernelTask(call, H200, wanted=60, mix=MIX, seed=1), space, batches=1)
    rows = [measured(call, space, schedule, who) for schedule, who in first]
    rest = run_all(KernelTask(call, H200, wanted=60, mix=MIX, seed=1, known=rows), space)
    keys = [space.key(schedule) for schedule, _ in first + rest]
    assert rest and len(set(keys)) == len(keys) <= 60
    assert not any(who in (HAND_CODED, "raw") for _, who in rest)


def test_a_small_space_ends(space: KernelSpace) -> None:
    (ast,) = kernels_of(empty(4) + 1)
    small = WorkloadCall(Region((kernel_of(ast),)), 1)
    own = KernelSpace(small.region, H200)
    drawn = run_all(KernelTask(small, H200, wanted=500, mix=MIX, seed=0), own)
    assert 1 < len(drawn) < 30


def whole_space(region: Region, target: Target) -> set[str]:
    """The identities of all schedules that steps lead to from the unoptimised kernel and from tinygrad's own."""
    space = KernelSpace(region, target)
    reached = {space.key(start): start for start in (RAW, space.baseline())}
    waiting = list(reached.values())
    while waiting:
        for action in space.actions(waiting.pop()):
            if (key := space.key(action.schedule)) not in reached:
                reached[key] = action.schedule
                waiting.append(action.schedule)
    return set(reached)


SMALL_SPACES = {
    2: lambda: empty(5) + 1,
    3: lambda: empty(2) + 1,
    6: lambda: empty(7, 2).sum(1),
    9: lambda: empty(9) + 1,
    10: lambda: empty(4) + 1,
    47: lambda: empty(28) + 1,
    72: lambda: empty(4, 4).sum(1),
    168: lambda: empty(16) + 1,
}
"""Schedules that a kernel has on an H200, counted."""


SOME_SLOW = [pytest.param(size, marks=pytest.mark.slow) if size in (47, 168) else size for size in SMALL_SPACES]


@pytest.mark.parametrize("size", first(3, SOME_SLOW))
def test_a_kernel_gets_as_many_schedules_as_are_wanted_or_all_that_it_has(size: int) -> None:
    (ast,) = kernels_of(SMALL_SPACES[size]())
    call = WorkloadCall(Region((kernel_of(ast),)), 1)
    space, everything = KernelSpace(call.region, H200), whole_space(call.region, H200)
    assert len(everything) == size
    for wanted in sorted({1, 2, 3, 4, 5, 9, 20, 64, size - 1, size, size + 1, 3 * size}):
        for mix in (MIX, (("beam:2/8", 1.0),), (("walk:hand-coded", 0.5), ("near:best", 0.5))):
            drawn = run_all(KernelTask(call, H200, wanted=wanted, mix=mix, seed=wanted), space)
            keys = {space.key(schedule) for schedule, _ in drawn}
            assert len(keys) == len(drawn) == min(wanted, size), (wanted, mix)
            assert keys <= everything


def test_in_stages_and_on_several_runs_it_gets_no_fewer() -> None:
    (ast,) = kernels_of(empty(4, 4).sum(1))
    call = WorkloadCall(Region((kernel_of(ast),)), 1)
    space = KernelSpace(call.region, H200)
    rows: list[Measurement] = []
    for wanted, mix in ((5, MIX), (16, (("walk:raw", 1.0),)), (64, MIX), (500, (("near:best", 1.0),))):
        task = KernelTask(call, H200, wanted=wanted, mix=mix, seed=3, how=Drawing(most=7), known=rows)
        rows += [measured(call, space, schedule, who) for schedule, who in run_all(task, space)]
        assert len({space.key(row.schedule) for row in rows}) == len(rows) == min(wanted, 72)


def test_a_table_has_what_its_searches_ask_for_and_its_lattice_alone() -> None:
    (ast,) = kernels_of(empty(4, 4).sum(1))
    call = WorkloadCall(Region((kernel_of(ast),)), 1)
    drawn = run_all(TableTask(call, H200, seed=0, limit=12), KernelSpace(call.region, H200))
    assert {who.partition(":")[0] for _, who in drawn} == {HAND_CODED, "raw", "beam", "lattice"}


def test_a_campaign_measures_as_many_as_are_wanted_where_there_are_so_many(tmp_path: Path) -> None:
    calls = tuple(WorkloadCall(Region((kernel_of(ast),)), 1) for n in (5, 16) for ast in kernels_of(empty(n) + 1))
    source, out = tmp_path / "source.sqlite", tmp_path / "j.sqlite"
    with Journal.open(source) as journal:
        journal.add_workload(Workload("small", "x", calls))
    mix = (("walk:raw", 0.5), ("beam:2/8", 0.5))
    settings = CampaignSettings(out, source=source, device="CPU:X86", schedules_per_kernel=9, mix=mix)
    assert generate_here(settings, log=lambda line, eta_s: None).finished
    with Journal.open(out, create=False) as journal:
        (target,), (toolchain,) = journal.targets().values(), journal.toolchains()
        for call in calls:
            rows = list(journal.known(target.fingerprint, toolchain, PROTOCOL, region_id=call.region.id))
            space, everything = KernelSpace(call.region, target), whole_space(call.region, target)
            keys = {space.key(row.schedule) for row in rows if not row.trial}
            assert len(keys) == min(9, len(everything)) and keys <= everything


def test_schedules_expected_to_take_seconds_are_left_out_but_for_the_hand_coded_one() -> None:
    (ast,) = kernels_of(empty(16384, 16384) @ empty(16384, 16384))
    region = Region((kernel_of(ast),))
    answer = draw(DrawJob(region, H200, (), 20, (("walk:raw", 1.0),), "0"))
    assert answer.batch[0].sampler == HAND_CODED
    assert all(choice.schedule != RAW for choice in answer.batch), "its every load comes from memory"


@pytest.mark.slow
def test_long_random_schedules_are_thinned(space: KernelSpace) -> None:
    (ast,) = kernels_of((empty(512, 512) @ empty(512, 512)).relu())
    region = Region((kernel_of(ast),))
    own = KernelSpace(region, H200)

    def share_of_long(who: str) -> float:
        task = KernelTask(WorkloadCall(region, 1), H200, wanted=150, mix=((who, 1.0),), seed=0)
        drawn = [own.uops(schedule) > LONG_UOPS for schedule, by in run_all(task, own) if by == who]
        assert len(drawn) > 100
        return sum(drawn) / len(drawn)

    rng = random.Random(0)
    walks, state = sampler("walk:hand-coded"), KernelState(own, Roofline(), {})
    distinct = {own.key(schedule): schedule for _ in range(40) for schedule in walks(state, rng)}
    plain = [own.uops(schedule) > LONG_UOPS for schedule in distinct.values()]
    before = sum(plain) / len(plain)
    expected = before * LONG_SHARE / (before * LONG_SHARE + 1 - before)
    assert before > 0.2 and share_of_long("walk:hand-coded") == pytest.approx(expected, abs=0.1)


def test_beam_is_the_beam_of_its_times(space: KernelSpace) -> None:
    """Against the algorithm written down once more, on complete knowledge of all times."""
    times: dict[str, float] = {}
    view = KernelState(space, Roofline(), times)
    asked: list[Schedule] = []
    while level := beam_level(view, random.Random(0), 2, None):
        asked += level
        times.update({space.key(s): cost(space, s) for s in level})
    kept, best, expected = [RAW], math.inf, list[Schedule]()
    seen = {space.key(RAW)}
    while True:
        children = {space.key(a.schedule): a.schedule for k in kept for a in space.actions(k)}
        children = {key: s for key, s in children.items() if key not in seen}
        seen |= set(children)
        expected += children.values()
        order = sorted(children.values(), key=lambda s: (cost(space, s), space.key(s)))
        if not order or cost(space, order[0]) > best - 1e-8:
            break
        best, kept = cost(space, order[0]), order[:2]
    assert {space.key(s) for s in asked} == {space.key(s) for s in expected}
    winner = beam_winner(view, 2)
    assert winner is not None and cost(space, winner) == best


def test_a_sampled_beam_measures_so_many_a_level(space: KernelSpace) -> None:
    times: dict[str, float] = {}
    view = KernelState(space, Roofline(), times)
    first = beam_level(view, random.Random(0), 1, 5)
    assert len(first) == 5 and all(len(opts_of(s)) == 1 for s in first)
    times.update({space.key(s): cost(space, s) for s in first})
    second = beam_level(view, random.Random(0), 1, 5)
    best = min(first, key=lambda s: cost(space, s))
    assert len(second) == 5 and all(opts_of(s)[:1] == opts_of(best) for s in second)


def test_a_beam_without_any_success_ends(space: KernelSpace) -> None:
    times: dict[str, float] = {}
    view = KernelState(space, Roofline(), times)
    times.update({space.key(s): math.inf for s in beam_level(view, random.Random(0), 2, None)})
    assert beam_level(view, random.Random(0), 2, None) == [] and beam_winner(view, 2) is None


def test_random_steps_are_the_legal_actions(space: KernelSpace) -> None:
    start = space.actions(RAW)[3].schedule
    legal = {action.schedule for action in space.actions(start)}
    rng = random.Random(0)
    assert {space.sample(rng, start) for _ in range(40 * len(legal))} == legal
    assert {space.sample(rng, RAW) for _ in range(40 * len(legal))} == {a.schedule for a in space.actions(RAW)}


def test_a_lattice_is_closed_declared_and_holds_what_it_must(space: KernelSpace) -> None:
    rng = random.Random(3)
    given = [RAW, RAW]
    for i in range(2):
        for _ in range(5):
            given[i] = space.sample(rng, given[i]) or given[i]
    made = lattice(space, given, rng=rng, limit=120)
    keys = set(made.keys.values())
    assert len(made.steps) == len(keys) and 100 < len(made.steps) <= 130
    for schedule in (space.baseline(), *given):
        assert {space.key(p) for p in prefixes(schedule)} <= keys
    reached, waiting = {RAW}, [RAW]
    while waiting:
        for step in made.steps[waiting.pop()]:
            if step.schedule not in reached:
                reached.add(step.schedule)
                waiting.append(step.schedule)
    assert reached == set(made.steps), "every schedule has a way to it that is inside"
    labels = {str(opt) for opt in made.actions}
    for schedule, steps in made.steps.items():
        for step in steps:
            assert step.label in labels
            (opt,) = (o for o in made.actions if str(o) == step.label)
            after = schedule_of((*opts_of(schedule), opt))
            assert space.key(after) == made.keys[step.schedule]


def test_shards_are_disjoint_and_complete(call: WorkloadCall) -> None:
    calls = [WorkloadCall(Region((kernel_of(ast),)), 1) for n in range(2, 40) for ast in kernels_of(empty(n) + 1)]
    workloads = [Workload("a", "x", tuple(calls[:25])), Workload("b", "x", tuple(calls[20:]))]
    whole = {c.region.id for c in distinct_calls(workloads, shard=(1, 1), seed=0)}
    parts = [{c.region.id for c in distinct_calls(workloads, shard=(i, 3), seed=0)} for i in (1, 2, 3)]
    assert len(whole) == len(calls) and set.union(*parts) == whole and sum(map(len, parts)) == len(whole)
    assert all(parts)
    nested = {c.region.id for i in (2, 5) for c in distinct_calls(workloads, shard=(i, 6), seed=0)}
    assert nested == parts[1], "two GPUs share a shard in halves"
    few = distinct_calls(workloads, shard=(1, 1), seed=0, per_family=4)
    assert 4 <= len(few) <= 8


def test_which_kernels_get_a_table(call: WorkloadCall) -> None:
    def some(count: int, offset: int) -> tuple[WorkloadCall, ...]:
        asts = [ast for n in range(count) for ast in kernels_of(empty(n + offset) + 1)]
        return tuple(WorkloadCall(Region((kernel_of(ast),)), 1) for ast in asts)

    symbolic = replace(call, variables=(("n", 4),))
    workloads = [
        Workload("flux", "mini", (*some(12, 100), symbolic)),
        Workload("bert", "mini", some(3, 300)),
        Workload("synthetic_x", "mini", some(9, 400)),
    ]
    chosen = table_calls(workloads, 12, seed=0)
    names = Counter(w.name for c in chosen for w in workloads if c in w.calls)
    assert names["flux"] == 4 and len(chosen) == 12 and symbolic not in chosen
    assert {c.region.id for c in workloads[0].calls[:1]} <= {c.region.id for c in chosen}, "the smallest of Flux"
    assert names["bert"] == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("walk", "unknown sampler .walk.: did you mean walk:raw"),
        ("walk:raw,mcts=0.5", "every sampler a share or none"),
        ("beam:0=1", "unknown sampler"),
        ("walk:raw=-1", "share"),
        ("walk:raw=x", "share"),
        ("walk:raw=1,walk:raw=1", "share"),
        ("", "empty"),
        ("greedy:2=1", "unknown sampler"),
    ],
)
def test_a_bad_mix_is_one_line(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_mix(text)


def test_mixes_and_shards_are_read() -> None:
    assert parse_mix("walk:raw=1, beam:4=3") == (("walk:raw", 0.25), ("beam:4", 0.75))
    assert parse_mix(",".join(f"{k}={v}" for k, v in MIX)) == MIX
    assert parse_shard("2/4") == (2, 4)
    for bad in ("0/4", "5/4", "1", "a/b", "1/0"):
        with pytest.raises(UsageError, match="--shard"):
            parse_shard(bad)


def test_names_of_workloads() -> None:
    def names(*workloads: str, device: str = "CPU", preset: str = "auto") -> list[str]:
        settings = CampaignSettings(Path("x"), workloads, preset=preset)
        return [f"{spec.name}/{chosen}" for spec, chosen in chosen_specs(settings, device)]

    assert names("flux", "gpt2/mini-f16") == ["flux/mini", "gpt2/mini-f16"]
    assert set(names("gpt2/all")) == {"gpt2/mini", "gpt2/mini-f16"} == set(names("gpt2", preset="all"))
    assert "gpt2/small" in names("gpt2/all", device="CUDA")
    assert {n.split("/")[0] for n in names("zoo")} >= {"flux", "gpt2", "bert"}
    with pytest.raises(UsageError):
        names("zoo/mini")


@pytest.mark.slow
def test_a_campaign_with_tables_for_real(tmp_path: Path) -> None:
    settings = CampaignSettings(
        tmp_path / "j.sqlite",
        ("rope/mini",),
        device="CPU:X86",
        schedules_per_kernel=3,
        kernels_per_family=2,
        mix=(("walk:raw", 1.0),),
        tables=1,
        table_schedules=12,
        budget_s=3000,
    )
    messages: list[str] = []
    done = generate_here(settings, log=lambda line, eta_s: messages.append(line))
    assert done.finished and done.measured > 12 and done.kernels == 2
    with Journal.open(settings.out, create=False) as journal:
        (target,), (toolchain,) = journal.targets(), journal.toolchains()
        ((region_id, declaration),) = journal.lattices(target, toolchain).items()
        rows = list(journal.known(target, toolchain, PROTOCOL, region_id=region_id))
        (run,) = journal.runs().values()
    table = replay_table(declaration, [row for row in rows if not row.trial])
    twice = [row for row in rows if row.trial == 1]
    assert len(twice) == 1 and twice[0].sampler == HAND_CODED, "the noise floor of the kernel"
    assert twice[0].samples_s != next(r for r in rows if r.schedule == twice[0].schedule and not r.trial).samples_s
    assert 2 <= len(table.records) <= 14 and math.isfinite(table.best_s)
    assert table.baseline() in table.records
    with pytest.raises(DataError, match="not measured"):
        replay_table(declaration, rows[:1])
    assert run.description["mix"] == {"walk:raw": 1.0}
    assert {key: run.description[key] for key in provenance()} == provenance()
    assert FILE in ended(dataset, "export", settings.out, tmp_path / "export").stdout
    (named,) = read_tables(tmp_path / "export")
    assert named.table.to_json() == table.to_json() and named.region_id == region_id
    again = generate_here(settings, log=lambda line, eta_s: None)
    assert again.measured == 0 and again.finished and again.already_known >= 6
    connection = sqlite3.connect(settings.out)  # as if the first occasion had ended in the middle of the table
    with connection:
        connection.execute("DELETE FROM measurements WHERE rowid IN (SELECT max(rowid) FROM measurements)")
    connection.close()
    rest = generate_here(replace(settings, table_schedules=5), log=lambda line, eta_s: None)
    assert rest.measured == 1 and rest.finished
    with Journal.open(settings.out, create=False) as journal:
        assert journal.lattices(target, toolchain) == {region_id: declaration}, "it goes on with what was declared"


def test_more_gpus_than_there_are(tmp_path: Path) -> None:
    settings = CampaignSettings(tmp_path / "j.sqlite", ("norms/mini",), device="CPU:X86", gpus=2)
    with pytest.raises(DeviceError, match="--gpus 2"):
        generate(settings, log=lambda line, eta_s: None)


def test_known_schedules_that_no_longer_apply_are_left_aside(call: WorkloadCall) -> None:
    foreign = Known(Schedule("opts", '[["UPCAST",7,4]]'), "walk:raw", 1e-5)
    answer = draw(DrawJob(call.region, H200, (foreign,), 10, MIX, "0"))
    assert answer.keys == ("",) and len(answer.batch) > 2


def test_the_quick_schedule_state_is_tinygrads(space: KernelSpace) -> None:
    from kcg.compat.tiny import Scheduler

    state = space.state(space.baseline())
    plain = Scheduler(state.ast, state.ren)
    assert state.rngs == plain.rngs and state.full_shape == plain.full_shape
    assert state.copy().axis_types == plain.axis_types


def test_greedy_samplers_follow_the_predictor_that_is_named() -> None:
    """The shipped one by default; who else is named decides other steps, and a file that is not there is refused."""
    (ast,) = kernels_of(empty(64, 32) @ empty(32, 48))
    region = Region((kernel_of(ast),))
    mix = (("greedy:0", 1.0),)

    def drawn(predictor: str) -> list[Schedule]:
        answer = draw(DrawJob(region, H200, (), 24, mix, "0", predictor=predictor))
        return [choice.schedule for choice in answer.batch if choice.sampler == "greedy:0"]

    assert drawn("roofline") and drawn("auto")
    assert drawn("roofline") != drawn("auto")
    with pytest.raises(UsageError, match="--predictor nowhere: write auto, roofline, or the path"):
        check_choice("nowhere")


def test_what_does_not_end_ends_no_later_than_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MeasureService, "measure", lambda self, requests, **how: [Future() for _ in requests])
    settings = CampaignSettings(tmp_path / "j.sqlite", ("rope/mini",), device="CPU:X86", budget_s=0.5)
    done = generate_here(settings, log=lambda line, eta_s: None)
    assert not done.finished and done.measured == 0
