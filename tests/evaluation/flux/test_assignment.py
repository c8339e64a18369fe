"""How processes share a campaign: none does what another has or holds, and what a dead one held is free again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from evaluation.flux import retiming, searching
from evaluation.flux.campaign import RETIME, Campaign, Unit, assigned, claim, claim_journal
from evaluation.flux.retiming import Prepared, choices, retime, retime_all
from evaluation.search.device_journal import Beam, DeviceJournal, Shard
from kcg.errors import UsageError
from kcg.kernel.codec import kernel_of
from kcg.kernel.opts.schedule import RAW, Opt, schedule_of
from kcg.measure.service import MeasureService
from kcg.types import Region, Schedule
from tests.kernels import empty, kernels_of

DEV = os.environ["DEV"]
ROOT = Path(__file__).parents[3]
STEM = f"{DEV.replace(':', '-')}-mini"
METHODS = ("tinygrad-beam:1", "random:2", "raw", "kcg:quick")
OWN_S = (5e-3, 4e-3, 3e-3)


@pytest.fixture(scope="module")
def service() -> Iterator[MeasureService]:
    with MeasureService(DEV, run_id="claims", compile_workers=1) as opened:
        yield opened


def regions() -> list[Region]:
    programs = (empty(24, 16) + 1, empty(16, 40).sum(1), empty(6) * 2)
    return [Region((kernel_of(ast),)) for program in programs for ast in kernels_of(program)]


def begin(folder: Path, service: MeasureService) -> None:
    kernels = [(region, 2, own_s) for region, own_s in zip(regions(), OWN_S, strict=True)]
    DeviceJournal(folder / f"{STEM}.jsonl").set(*service.facts, kernels)


def process(folder: Path, number: int, methods: tuple[str, ...] = METHODS) -> Campaign:
    """What a process with `--shard number/2` has of a campaign."""
    journal = DeviceJournal(folder / f"{STEM}.jsonl", shard=Shard(number, 2))
    return Campaign(journal, "mini", DEV, methods, share=1.0, log=lambda line: None)


def names(wave: list[Unit]) -> list[tuple[str, int | None]]:
    """Each unit's method, and which of `regions` it is about."""
    known = regions()
    return [(unit.method, known.index(unit.region) if unit.region is not None else None) for unit in wave]


def test_each_takes_what_nobody_holds_and_looks_again_at_what_was_dropped(
    service: MeasureService, tmp_path: Path
) -> None:
    begin(tmp_path, service)
    one, other = (process(tmp_path, number) for number in range(2))
    ones, others = assigned(one, one.units(), 2), assigned(other, other.units(), 2)
    assert names(next(ones)) == [("tinygrad-beam:1", 0)], "that on the slowest kernel first"
    assert names(next(others)) == [("tinygrad-beam:1", 1)]
    one.journal.add("tiny", regions()[0].id, RAW, width=1, binaries=2, wall_s=1.0)
    other.journal.add("tiny", regions()[1].id, RAW, width=1, binaries=2, wall_s=1.0)
    assert names(next(others)) == [("tinygrad-beam:1", 2)], "the first is done: the journal is read after the lock"
    assert names(next(ones)) == [("random:2", 0), ("random:2", 1)], "two at once; BEAM on the third is held"
    assert names(next(others)) == [("random:2", 2)]
    ones.close()  # nothing was kept
    assert [names(wave) for wave in others] == [
        [("raw", 0)],
        [("raw", 1)],
        [("raw", 2)],
        [("kcg:quick", None)],
        [("random:2", 0), ("random:2", 1)],
    ]


def test_the_widest_searches_of_the_slowest_kernels_come_first(service: MeasureService, tmp_path: Path) -> None:
    begin(tmp_path, service)
    campaign = process(tmp_path, 0, ("tinygrad-beam:4", "random:2"))
    assert campaign.beam_s("tinygrad-beam:4", regions()[0]) == 2 * campaign.beam_s("tinygrad-beam:2", regions()[0]) > 0
    for region, wall_s in zip(regions(), (10.0, 100.0, 50.0), strict=True):
        campaign.journal.of(region.id).tiny[2] = Beam(RAW, 1, wall_s)
    assert campaign.beam_s("tinygrad-beam:4", regions()[1]) == 200.0
    order = [kernel for _, kernel in names([*campaign.units()])]
    assert order == [1, 2, 0, 0, 1, 2]


HOLD = """
import sys, time
from pathlib import Path
from evaluation.flux.campaign import assigned
from tests.evaluation.flux.test_assignment import process
campaign = process(Path(sys.argv[1]), 1)
for wave in assigned(campaign, campaign.units(), 3):
    print("held", flush=True)
    time.sleep(36_000)
"""


def test_what_a_killed_process_held_is_free_again(service: MeasureService, tmp_path: Path) -> None:
    begin(tmp_path, service)
    campaign = process(tmp_path, 0, ("tinygrad-beam:1",))
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == "held\n"
            held = [names(wave) for wave in assigned(campaign, campaign.units(), 1)]
            assert held == [[("tinygrad-beam:1", 1)], [("tinygrad-beam:1", 2)]]
        finally:
            holder.kill()
    free = [names(wave) for wave in assigned(campaign, campaign.units(), 1)]
    assert free[0] == [("tinygrad-beam:1", 0)] and len(free) == 3


WALK = """
import sys
from pathlib import Path
from evaluation.flux.campaign import assigned
from kcg.kernel.opts.schedule import RAW
from tests.evaluation.flux.test_assignment import process
campaign = process(Path(sys.argv[1]), int(sys.argv[2]), tuple(sys.argv[3:]))
for (unit,) in assigned(campaign, campaign.units(), 1):
    width = int(unit.method.partition(":")[2])
    campaign.journal.add("tiny", unit.region.id, RAW, width=width, binaries=1, wall_s=1.0)
"""


def test_no_unit_is_assigned_twice(service: MeasureService, tmp_path: Path) -> None:
    begin(tmp_path, service)
    methods = [f"tinygrad-beam:{width}" for width in range(1, 41)]
    commands = [[sys.executable, "-c", WALK, str(tmp_path), str(number), *methods] for number in range(2)]
    both = [subprocess.Popen(command, cwd=ROOT) for command in commands]
    assert [process.wait() for process in both] == [0, 0]
    lines = [json.loads(line) for file in tmp_path.glob("*.jsonl") for line in file.read_text().splitlines()]
    done = Counter((row["width"], row["region"]) for row in lines if row["what"] == "tiny")
    assert len(done) == 3 * 40 and {*done.values()} == {1}


@pytest.mark.slow
def test_two_processes_do_everything_once(service: MeasureService, tmp_path: Path) -> None:
    begin(tmp_path, service)
    methods, out = METHODS[:3], tmp_path / "out.json"
    command = (
        f"-m evaluation.flux.table --preset mini --device {DEV} --methods {','.join(methods)} --share 1 "
        f"--work {tmp_path} --out {out} --torch {tmp_path / 'none.json'} --shard"
    )
    both = [
        subprocess.Popen(
            [sys.executable, *command.split(), f"{number}/2"],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    printed = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], printed
    lines = [json.loads(line) for file in tmp_path.glob("*.jsonl") for line in file.read_text().splitlines()]
    kept = Counter((row["what"], row["region"]) for row in lines if row["what"] in ("tiny", "play"))
    comparisons = Counter((row["region"], row["body"]) for row in lines if row["what"] == "duel")
    assert len(kept) == 6 and len({region for region, _ in comparisons}) == 3
    assert {*kept.values(), *comparisons.values()} == {1}, "nothing was done twice"
    assert sum(row["what"] == "canary" for row in lines) == 2, "each process has its own"
    table = next(iter(json.loads(out.read_text())["runs"].values()))["methods"]
    assert {row["not_tried"] for row in table.values()} == {0}, "the last writes down what both found"


@pytest.mark.slow
def test_choices_of_one_kernel_are_timed_by_one_process(service: MeasureService, tmp_path: Path) -> None:
    begin(tmp_path, service)
    one, other = (process(tmp_path, number, ("random:2",)) for number in range(2))
    searching.fly_canary(one, service)
    held = claim(other, RETIME, regions()[0].id)
    assert held is not None
    retime_all(one, service, None)
    timed = [bool(one.journal.of(region.id).comparisons) for region in regions()]
    assert timed == [False, True, True]
    report = next(iter(one.journal.of(regions()[1].id).comparisons.values()))
    assert report["canary_s"] == one.canary_s == one.journal.canaries[-1]
    other.journal.read_on()
    retime(other, next(choices(other, service, None)))
    held.close()
    size = one.journal.path.stat().st_size
    retime_all(one, service, None)
    assert one.journal.path.stat().st_size == size and one.journal.of(regions()[0].id).comparisons, "it read it"


def test_what_was_chosen_while_a_kernel_was_timed_is_timed_by_who_had_it(
    service: MeasureService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path, service)
    one, other = (process(tmp_path, number, ("tinygrad-beam:1", "tinygrad-beam:2")) for number in range(2))
    first, chosen = regions()[0], schedule_of([Opt("UPCAST", 0, 3)])
    one.journal.add("tiny", first.id, RAW, width=1, binaries=2, wall_s=1.0)

    def timed(campaign: Campaign, bench: object, schedule: Schedule, ready: Prepared) -> dict[str, float]:
        if not other.journal.of(first.id).tiny.get(2):
            other.journal.add("tiny", first.id, chosen, width=2, binaries=2, wall_s=1.0)
            retime_all(other, service, None)  # it finds the kernel in other hands, and ends
        return {"own_s": 1.0}

    monkeypatch.setattr(retiming, "compare_paired", timed)
    retime_all(one, service, None)
    assert chosen in one.journal.of(first.id).comparisons and not one.left


def test_a_kernel_that_is_still_searched_is_timed_when_that_is_done(service: MeasureService, tmp_path: Path) -> None:
    begin(tmp_path, service)
    one, other = (process(tmp_path, number, ("tinygrad-beam:1", "kcg:quick")) for number in range(2))
    first = regions()[0]
    again = [Unit(RETIME, region) for region in regions()]
    held = claim(other, "kcg:quick", "")
    assert held is not None
    assert not [*assigned(one, again, 1)], "kcg's command searches all of them"
    other.journal.add_run("kcg:quick", {"chosen": {}})
    held.close()
    held = claim(other, "tinygrad-beam:1", first.id)
    assert held is not None
    looking = claim(other, "tinygrad-beam:1", regions()[1].id, shared=True)
    assert looking is not None
    waves = assigned(one, again, 1)
    assert names(next(waves)) == [(RETIME, 1)], "what nobody searches is not waited for, even if another just looks too"
    other.journal.add("tiny", first.id, RAW, width=1, binaries=1, wall_s=1.0)
    held.close()
    looking.close()
    assert [names(wave) for wave in waves] == [[(RETIME, 2)], [(RETIME, 0)]]
    assert one.journal.of(first.id).tiny, "what was found meanwhile is timed too"


def test_a_line_that_is_just_being_written_is_read_when_it_is_complete(service: MeasureService, tmp_path: Path) -> None:
    begin(tmp_path, service)
    one, other = process(tmp_path, 0).journal, process(tmp_path, 1).journal
    other.add_canary(1.0)
    other.add_canary(2.0)
    line = other.path.read_bytes().splitlines(keepends=True)[1]
    with other.path.open("r+b") as file:
        file.truncate(other.path.stat().st_size - 5)
    one.read_on()
    assert one.canaries == [1.0]
    with other.path.open("ab") as file:
        file.write(line[-5:])
    one.read_on()
    one.read_on()
    assert one.canaries == [1.0, 2.0]
    with other.path.open("ab") as file:
        file.write(line[:-5])  # it died
    again = process(tmp_path, 1).journal
    assert other.path.read_bytes().endswith(line[:-5]), "reading writes nothing"
    again.add_canary(3.0)
    one.read_on()
    assert one.canaries == again.canaries == [1.0, 2.0, 3.0]


def test_kernels_of_two_presets_are_searched_once(service: MeasureService, tmp_path: Path) -> None:
    paths, found = [tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "c.jsonl"], Schedule("opts", "[]")
    shared, mine, alien = regions()
    target, toolchain = service.facts
    DeviceJournal(paths[0]).set(target, toolchain, [(alien, 1, 2e-3), (shared, 1, 1e-3)])
    DeviceJournal(paths[2]).set(target, replace(toolchain, driver="9.9"), [(shared, 1, 1e-3)])
    sibling = DeviceJournal(paths[1], shard=Shard(0, 1), beside=paths[:1])
    DeviceJournal(paths[1]).set(target, toolchain, [(mine, 1, 2e-3), (shared, 3, 1e-3)])
    theirs = DeviceJournal(paths[0], shard=Shard(1, 2))
    for region in (shared, alien):
        theirs.add("tiny", region.id, found, width=4, binaries=9, wall_s=8.0)
    theirs.add_canary(1.0)
    sibling.read_on()
    assert sibling.of(shared.id).tiny == {4: Beam(found, 9, 8.0)} and not sibling.canaries
    assert alien.id not in sibling.kernels, "a kernel that this preset does not have"
    assert not sibling.path.exists()
    assert not DeviceJournal(paths[2], beside=paths[:1]).kernels, "another driver"


@pytest.mark.parametrize("shard", [None, Shard(0, 2)])
def test_a_preset_that_begins_later_is_read_on_with_or_without_shards(
    service: MeasureService, tmp_path: Path, shard: Shard | None
) -> None:
    mine, theirs, (shared, *_) = tmp_path / "a.jsonl", tmp_path / "b.jsonl", regions()
    DeviceJournal(mine).set(*service.facts, [(shared, 1, 1e-3)])
    journal = DeviceJournal(mine, beside=[theirs])
    DeviceJournal(theirs).set(*service.facts, [(shared, 3, 1e-3)])
    writer = DeviceJournal(theirs, shard=shard)
    for width in (1, 2):
        writer.add("tiny", shared.id, RAW, width=width, binaries=9, wall_s=8.0)
        journal.read_on()
        assert width in journal.of(shared.id).tiny


def test_two_processes_of_one_shard_after_another_do_nothing_twice(service: MeasureService, tmp_path: Path) -> None:
    begin(tmp_path, service)
    second = process(tmp_path, 0, ("tinygrad-beam:1",))  # it has opened its journal, and looks for its device
    first = process(tmp_path, 0, ("tinygrad-beam:1",))
    with claim_journal(first):
        first.journal.add_canary(1.0)
        for (unit,) in assigned(first, first.units(), 1):
            assert unit.region is not None
            first.journal.add("tiny", unit.region.id, RAW, width=1, binaries=1, wall_s=1.0)
    with first.journal.path.open("ab") as file:
        file.write(b'{"what":"can')  # it died
    with claim_journal(second):
        assert second.journal.canaries == [1.0], "known before a unit is assigned"
        assert not [*assigned(second, second.units(), 1)]
        second.journal.add_canary(2.0)
        second.journal.read_on()
        assert second.journal.canaries == process(tmp_path, 0).journal.canaries == [1.0, 2.0]


def test_a_line_that_only_lacks_its_end_is_known_to_all(service: MeasureService, tmp_path: Path) -> None:
    begin(tmp_path, service)
    process(tmp_path, 0).journal.add_canary(1.0)
    path = process(tmp_path, 0).journal.path
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    writer, reader = process(tmp_path, 0).journal, process(tmp_path, 1).journal
    assert writer.canaries == reader.canaries == [1.0]
    writer.add_canary(2.0)
    reader.read_on()
    assert writer.canaries == reader.canaries == process(tmp_path, 0).journal.canaries == [1.0, 2.0]


def test_two_processes_do_not_write_one_file(service: MeasureService, tmp_path: Path) -> None:
    begin(tmp_path, service)
    with (
        claim_journal(process(tmp_path, 0)),
        claim_journal(process(tmp_path, 1)),
        pytest.raises(UsageError, match="give each its own --shard"),
    ):
        claim_journal(process(tmp_path, 0))
