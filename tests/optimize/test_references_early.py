"""With `--measurements 0` references of what was chosen are asked for at once: all of it is judged soon."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from kcg.optimize.ahead import Ahead
from kcg.optimize.search import search
from kcg.optimize.settings import Settings
from kcg.optimize.work import RegionWork
from tests.optimize_run import begun

SCRIPT = Path(__file__).parents[1] / "scripts" / "three_kernels.py"


class Asked:
    """As `Ahead`, of which only `prepare` is of interest."""

    rate = 0.0

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def prepare(self, works: Sequence[RegionWork]) -> None:
        assert all(work.found for work in works), "of what keeps tinygrad's own schedule nothing is judged"
        self.calls.append([work.id for work in works])

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def test_references_are_asked_for_as_soon_as_a_choice_is_made(tmp_path: Path) -> None:
    settings = Settings(workload=str(SCRIPT), device=os.environ["DEV"], folder=tmp_path, measurements=0)
    with begun(settings) as opened:
        asked, estimates = Asked(), opened.estimates(opened.untimed())
        found = search(estimates, opened.guide, device=opened.device, log=opened.log, ahead=cast(Ahead, asked))
        chosen = {work.id for work in found.works if work.found}
    assert len(asked.calls) == len(found.works), "after each kernel"
    assert chosen and set(asked.calls[-1]) == chosen
