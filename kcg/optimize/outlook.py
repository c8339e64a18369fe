"""What more time would be expected to bring when a run ends: what it found and did not judge, and what its searches
were stopped before. Nothing but what the run itself has estimated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kcg.types import Outlook

if TYPE_CHECKING:
    from kcg.optimize.work import RegionWork
    from kcg.types import RegionResult


def outlook_of(
    works: Sequence[RegionWork],
    judged: Mapping[str, RegionResult],
    rows: Sequence[RegionResult],
    expected_s: Mapping[str, float],
) -> Outlook:
    """Of all that was searched, kernels and regions, and what was `judged` of it by `RegionWork.id`; `rows` are those
    of the chosen plan: what no call of it runs would save nothing. `expected_s` is `Candidates.expected`."""
    left = Counter[str]()
    for row in rows:
        left[row.region.id] += row.calls

    def share(work: RegionWork) -> float:
        """Of its calls, those that the plan runs as they are."""
        if work.proposed and not left[work.call.region.id]:
            return float(work.taken <= left)
        return min(left[work.call.region.id] / work.call.calls, 1.0) if work.call.calls else 0.0

    found = {w.id: share(w) * w.saving_s for w in works if not w.proposed and _is_unjudged(w, judged)}
    rest = left.copy()
    regions = (work for work in works if work.proposed and _is_unjudged(work, judged))
    for work in sorted(regions, key=lambda work: -work.saving_s):  # what saves most first: they share calls
        if work.taken <= rest:
            rest -= work.taken
            found[work.id] = work.saving_s
    hoped = {work.id: share(work) * expected_s.get(work.id, 0.0) for work in works}
    unjudged, searches = ([s for s in seconds.values() if s > 0] for seconds in (found, hoped))
    return Outlook(len(unjudged), sum(unjudged), len(searches), sum(searches))


def _is_unjudged(work: RegionWork, judged: Mapping[str, RegionResult]) -> bool:
    """Whether something was found for it, and not judged; what is expected alone was not found."""
    row = judged.get(work.id)
    return work.saving_s > 0 and not work.is_expected and (row is None or row.outcome == "undecided")
