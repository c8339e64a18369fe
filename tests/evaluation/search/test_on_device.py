"""Strategies compared on a device: what one replay measured no other measures again, and each pays for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from evaluation.search.comparison import Settings, predictor_of
from evaluation.search.comparison_text import sections
from evaluation.search.device_journal import DeviceJournal, Shard
from evaluation.search.on_device import DeviceBench, compare_on_device, compare_on_flux
from evaluation.search.regret import Board, entry
from kcg.errors import DataError, MismatchError, UsageError
from kcg.kernel.codec import kernel_of
from kcg.measure.service import MeasureService
from kcg.predictor.choice import SHIPPED
from kcg.types import Region
from tests.kernels import empty, kernels_of

SETTINGS = Settings(("random", "mcts"), "mcts", (), seeds=1, budget=4)
CHECKPOINT = SHIPPED / "cuda.safetensors"


@pytest.fixture(scope="module")
def service() -> Iterator[MeasureService]:
    with MeasureService("CPU:X86", run_id="live", compile_workers=1) as opened:
        yield opened


def a_region() -> Region:
    (ast,) = kernels_of(empty(16, 12) + 1)
    return Region((kernel_of(ast),))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.slow
def test_a_comparison_on_a_device_goes_on_and_measures_nothing_twice(service: MeasureService, tmp_path: Path) -> None:
    path, calls, printed = tmp_path / "live.jsonl", [(a_region(), 3)], list[str]()
    predictor = predictor_of(CHECKPOINT)
    kernels, replays, report = compare_on_device(
        calls, service, predictor, SETTINGS, DeviceJournal(path), log=printed.append
    )
    (kernel,), (played,) = kernels, replays
    assert kernel.calls == 3 and kernel.table.best_s <= kernel.hand_coded_s
    for (name, _, budget), replay in played.items():
        assert replay.end_s >= kernel.table.best_s, name
        assert budget is None or replay.measurements <= budget
    assert set(report["totals"]) == {"hand-coded", *SETTINGS.contenders}
    assert report["totals"]["hand-coded"]["total_s"] > 0 and printed[-1].endswith(" s")
    whole = entry(Board(kernels, replays, SETTINGS), kernels) | report
    assert len(whole["kernels"]) == 1
    parts = sections(whole | {"beams": {}}, {"kernels_with_room_after_beam4": 1}, "live", "live.svg")
    assert parts["live-figures"] == ["- BEAM=4 leaves 3 % or more to the optimum on 1 of 1 kernels."]
    lines = parts["live-wall"]
    assert {line.split(" | ")[0] for line in lines[2:-2]} == {"| hand-coded", "| random", "| mcts"}
    assert report["costs"]["mcts"]["measurements"] <= 4 and report["costs"]["random"]["wall_s"] > 0

    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[-1][:20]]) + "\n")  # cut off in the middle
    again = compare_on_device(calls, service, predictor, SETTINGS, DeviceJournal(path))
    assert path.read_text().splitlines()[:-1] == lines, "everything was known"
    assert [{t: p.curve for t, p in one.items()} for one in again[1]] == [
        {t: p.curve for t, p in one.items()} for one in replays
    ]


def test_no_kernel_is_begun_once_the_time_is_over(service: MeasureService, tmp_path: Path) -> None:
    lines: list[str] = []
    kernels, replays, _ = compare_on_device(
        [(a_region(), 1)],
        service,
        predictor_of(CHECKPOINT),
        SETTINGS,
        DeviceJournal(tmp_path / "live.jsonl"),
        budget_s=0.0,
        log=lines.append,
    )
    assert (kernels, replays) == ([], []) and "0 of 1 kernels were replayed" in lines[0]


def test_nobody_knows_every_runtime_of_a_device(service: MeasureService, tmp_path: Path) -> None:
    bench = DeviceBench(a_region(), 1, service, predictor_of(CHECKPOINT), DeviceJournal(tmp_path / "live.jsonl"))
    with pytest.raises(UsageError, match="mcts/oracle runs on recorded tables only"):
        bench.problem("mcts/oracle", seed=0, budget=4)


def test_processes_share_a_journal_and_what_is_complete_needs_no_device(
    service: MeasureService, tmp_path: Path
) -> None:
    path, (ast,) = tmp_path / "live.jsonl", kernels_of(empty(8, 6) + 2)
    regions = [a_region(), Region((kernel_of(ast),))]
    settings = Settings(("random",), "random", (), seeds=1, budget=2)
    predictor = predictor_of(CHECKPOINT)
    DeviceJournal(path).set(*service.facts, [(region, 2, 1e-3) for region in regions])
    for number in range(2):
        journal = DeviceJournal(path, shard=Shard.parse(f"{number}/2"))
        assert journal.setting is not None and journal.setting.kernels == tuple((r, 2, 1e-3) for r in regions)
        compare_on_device([(regions[number], 2)], service, predictor, settings, journal)

    def recorded(journal: DeviceJournal) -> list[Region]:
        return [k.region for k in compare_on_flux("", "", journal, predictor, settings, count=8, recorded=True)[0]]

    before = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    assert recorded(DeviceJournal(path)) == regions
    assert before == [path.read_bytes() for path in sorted(tmp_path.iterdir())], "nothing was measured"
    (tmp_path / "live.1.jsonl").unlink()
    assert recorded(DeviceJournal(path)) == regions[:1], "what was not replayed on all is left out"
    (tmp_path / "live.0.jsonl").unlink()
    with pytest.raises(DataError, match="holds no kernel that everything was replayed on"):
        recorded(DeviceJournal(path))


def test_a_journal_is_of_one_device(service: MeasureService, tmp_path: Path) -> None:
    journal = DeviceJournal(tmp_path / "live.jsonl")
    with pytest.raises(UsageError, match="holds no comparison yet"):
        compare_on_flux("", "", journal, predictor_of(CHECKPOINT), SETTINGS, count=1, recorded=True)
    journal.set(*service.facts, [])
    with pytest.raises(MismatchError, match=r"is of .*, this is another with .*: give another --work"):
        journal.set(replace(service.target, model="another"), service.toolchain, [])


@pytest.mark.parametrize("text", ["1", "2/2", "a/2", "0/", "/2", "-1/2"])
def test_a_shard_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="write I/N with I from 0 to N - 1"):
        Shard.parse(text)
