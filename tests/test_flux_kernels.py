"""The kernels of a campaign one by one: their times and launch sizes, also of choices that are no good."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evaluation.baselines.campaign import Campaign
from evaluation.baselines.methods_kernels import kernels_markdown
from evaluation.baselines.retiming import duel
from kcg.measure.jobs import DuelOutcome
from kcg.search.live_journal import LiveJournal
from kcg.types import RAW, Opt, Region, Schedule, Verification
from tests.sample_result import sample_result

SCHEDULE = Schedule.from_opts([Opt("LOCAL", 0, 2)])
REGION = sample_result().regions[0].region


class FakeBench:
    """A kernel whose second schedule is compiled, and then judged or crashes."""

    region: Region = REGION
    space = SimpleNamespace(baseline=lambda: RAW, name=str)
    target = SimpleNamespace(device="CPU")

    def __init__(self, outcome: DuelOutcome | Exception) -> None:
        def result() -> DuelOutcome:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        self.service = SimpleNamespace(target=None, duel=lambda job, timeout_s: SimpleNamespace(result=result))


class FakePrepared:
    def compiled(self, bench: Any, schedule: Schedule) -> Any:
        return SimpleNamespace(binary_hash=str(schedule), global_size=(6, 4, 1), local_size=(2, 1, 1))

    def references(self, bench: Any) -> None:
        return None


@pytest.mark.parametrize(
    "outcome",
    [
        DuelOutcome(Verification(True), Verification(False, reason="element 7 is -9.94, not 0.66")),
        TimeoutError("it hangs"),
    ],
)
def test_how_a_choice_that_is_no_good_is_launched_is_kept_too(tmp_path: Path, outcome: DuelOutcome | Exception) -> None:
    path = tmp_path / "table.jsonl"
    campaign = Campaign(LiveJournal(path), "mini", "CPU", ())
    told = duel(campaign, FakeBench(outcome), SCHEDULE, FakePrepared())  # type: ignore[arg-type]
    assert ("wrong" in told) != bool(told["reason"])
    campaign.journal.add("duel", REGION.id, SCHEDULE, duel=told)
    assert LiveJournal(path).of(REGION.id).launches == {SCHEDULE: ((6, 4, 1), (2, 1, 1))}


def test_rows_tell_launches_and_those_of_before_do_not(tmp_path: Path) -> None:
    journal = LiveJournal(tmp_path / "table.jsonl")
    row = {"status": "ok", "runtime_s": 1.0, "binary": "", "reason": "", "spent_s": 0.0}
    journal.add("row", REGION.id, SCHEDULE, **row)
    assert journal.of(REGION.id).launches == {}
    journal.add("row", REGION.id, SCHEDULE, **row, launch=((), ()))  # it did not compile
    assert journal.of(REGION.id).launches == {}
    journal.add("row", REGION.id, RAW, **row, launch=((48, 1, 1), (1, 1, 1)))
    assert LiveJournal(journal.path).of(REGION.id).launches == {RAW: ((48, 1, 1), (1, 1, 1))}


def test_the_kernels_table_says_times_launches_and_what_is_wrong() -> None:
    totals = {"hand-coded": 9, "kcg:quick": 5, "kcg:normal": 4, "tinygrad-beam:4": 6, "tinygrad-beam:8": 7,
              "tinygrad-mcts:64": 8, "full-beam:1": 8, "full-beam:2": 7, "random:64": 1}  # fmt: skip
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
