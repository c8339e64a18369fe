"""The kernels of a campaign one by one: their times and launch sizes, also of choices that are no good."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evaluation.flux.campaign import Campaign
from evaluation.flux.methods_table import kernels_markdown
from evaluation.flux.retiming import Choices, compare_paired
from evaluation.search.device_journal import DeviceJournal, Shard
from kcg.measure.jobs import PairedOutcome
from kcg.types import RAW, Opt, Region, Schedule, Verification
from tests.sample_result import sample_result

SCHEDULE = Schedule.from_opts([Opt("LOCAL", 0, 2)])
REGION = sample_result().regions[0].region


class FakeBench:
    """A kernel whose second schedule is compiled, and then judged or crashes."""

    region: Region = REGION
    space = SimpleNamespace(baseline=lambda: RAW, name=str)
    target = SimpleNamespace(device="CPU")

    def __init__(self, outcome: PairedOutcome | Exception) -> None:
        def result() -> PairedOutcome:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        self.service = SimpleNamespace(
            target=None, compare_paired=lambda job, timeout_s: SimpleNamespace(result=result)
        )


class FakePrepared:
    def compiled(self, bench: Any, schedule: Schedule) -> Any:
        return SimpleNamespace(binary_hash=str(schedule), global_size=(6, 4, 1), local_size=(2, 1, 1))

    def references(self, bench: Any) -> None:
        return None


@pytest.mark.parametrize(
    "outcome",
    [
        PairedOutcome(Verification(True), Verification(False, reason="element 7 is -9.94, not 0.66")),
        TimeoutError("it hangs"),
    ],
)
def test_how_a_choice_that_is_no_good_is_launched_is_kept_too(
    tmp_path: Path, outcome: PairedOutcome | Exception
) -> None:
    path = tmp_path / "table.jsonl"
    campaign = Campaign(DeviceJournal(path), "mini", "CPU", ())
    report = compare_paired(campaign, FakeBench(outcome), SCHEDULE, FakePrepared())  # type: ignore[arg-type]
    assert ("wrong" in report) != bool(report["reason"])
    campaign.journal.add("duel", REGION.id, SCHEDULE, duel=report)
    assert DeviceJournal(path).of(REGION.id).launches == {SCHEDULE: ((6, 4, 1), (2, 1, 1))}


def test_rows_report_launches_and_those_of_before_do_not(tmp_path: Path) -> None:
    journal = DeviceJournal(tmp_path / "table.jsonl")
    row = {"status": "ok", "runtime_s": 1.0, "binary": "", "reason": "", "spent_s": 0.0}
    journal.add("row", REGION.id, SCHEDULE, **row)
    assert journal.of(REGION.id).launches == {}
    journal.add("row", REGION.id, SCHEDULE, **row, launch=((), ()))  # it did not compile
    assert journal.of(REGION.id).launches == {}
    journal.add("row", REGION.id, RAW, **row, launch=((48, 1, 1), (1, 1, 1)))
    assert DeviceJournal(journal.path).of(REGION.id).launches == {RAW: ((48, 1, 1), (1, 1, 1))}


def test_the_kernels_table_says_times_launches_and_what_is_wrong() -> None:
    totals = {
        "hand-coded": 9,
        "kcg:quick": 5,
        "kcg:normal": 4,
        "tinygrad-beam:4": 6,
        "tinygrad-beam:8": 7,
        "tinygrad-mcts:64": 8,
        "full-beam:1": 8,
        "full-beam:2": 7,
        "random:64": 1,
    }
    rows = {method: {"total_s": [total, total, total]} for method, total in totals.items()}
    kernel = {
        "name": "r_72_24", "part": "linear_gated 4608x3072x15360", "calls": 2,
        "seconds": dict.fromkeys(totals, 3e-3) | {"kcg:normal": 1.2e-3, "full-beam:2": 1.234e-4},
        "launch": {"hand-coded": ([24, 72, 1], [32, 4, 1]), "kcg:normal": ([1, 1, 1], [16, 1, 2]),
                   "tinygrad-beam:8": ([2, 1, 1], [3, 1, 1])},
        "hand_coded_stands": ["tinygrad-beam:4", "tinygrad-beam:8", "tinygrad-mcts:64"],
        "wrong": {"tinygrad-beam:4": "element 7 is -9.94", "tinygrad-beam:8": "too"}, "failed": {},
    }  # fmt: skip
    lines = kernels_markdown(rows, [kernel])
    heads = "| tinygrad's own | kcg, normal | BEAM=4 | BEAM=8 | tinygrad's MCTS, 64 each | BEAM=2 over kcg's actions |"
    assert f"|  | kernel | of | calls {heads}" in lines and f"|  {heads}" in lines
    name = "`r_72_24` | linear gated 4608 × 3072 × 15360 | 2"
    assert f"| 1 | {name} | 1,500 | 600 | wrong | wrong |  | **61.7** |" in lines
    assert lines[-1] == "| 1 | 24×72 · 32×4 | 1 · 16×1×2 | wrong | 2 · 3 (wrong) |  |  |", "empty where nothing is kept"
    assert kernels_markdown(rows, []) == []


def chosen_of(journal: DeviceJournal, device: str) -> Choices:
    bench = SimpleNamespace(seen=journal.of(REGION.id), target=SimpleNamespace(device=device))
    return Choices(bench, 1, {"hand-coded": RAW, "kcg:quick": SCHEDULE})  # type: ignore[arg-type]


def test_what_all_methods_chose_for_a_short_kernel_is_timed_in_one_piece(tmp_path: Path) -> None:
    """Else a process with a longer gap before each launch would decide which of them is faster."""
    journal = DeviceJournal(tmp_path / "table.jsonl")
    assert chosen_of(journal, "CUDA").untimed() == [RAW, SCHEDULE]
    for piece, short in (("2026-01-01", True), ("2026-01-02", False)):
        for schedule, cold_s in ((RAW, 4e-4), (SCHEDULE, 2e-5 if short else 6e-5)):
            journal.add("duel", REGION.id, schedule, duel={"cold_s": [cold_s], "own_s": [4e-4], "piece": piece})
        assert not chosen_of(journal, "CUDA").untimed()
        other = Schedule.from_opts([Opt("LOCAL", 0, 4)])  # what another method chooses later
        later = chosen_of(journal, "CUDA")
        later.by_method["random:3"] = other
        assert later.untimed() == ([RAW, SCHEDULE, other] if short else [other])
        on_cpu = chosen_of(journal, "CPU")
        on_cpu.by_method["random:3"] = other
        assert on_cpu.untimed() == [other], "whose clock stands around the call"


def test_the_last_piece_counts_whichever_file_is_read_first(tmp_path: Path) -> None:
    for shard, piece in ((0, "2026-01-02"), (1, "2026-01-01")):  # read in the order of their names
        journal = DeviceJournal(tmp_path / "table.jsonl", shard=Shard(shard, 2))
        journal.add("duel", REGION.id, SCHEDULE, duel={"cold_s": [1.0], "piece": piece})
    assert DeviceJournal(tmp_path / "table.jsonl").of(REGION.id).comparisons[SCHEDULE]["piece"] == "2026-01-02"
