"""How long the rest of an optimisation will take, so that a budget is kept, and how much of it is for searching.

What is reserved is judging what has a candidate, and checking the whole model; it grows while the search finds more. It
is worked out anew after every measurement, from what the run itself has measured: how long emptying the cache takes,
compiling, preparing a kernel. The search has a share of the budget that no reserve can take; what then finds no room is
left out in this order: the whole model's check where it would not fit anyhow, then judging where least is to be gained.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kcg.judge.paired import FRESH_CHILD_S
from kcg.judge.whole import Cost
from kcg.kernel.kinds import JoinsKernels, kind_named, needs_stress
from kcg.measure import stress
from kcg.measure.protocol import samples_for
from kcg.optimize import costs
from kcg.optimize.settings import TINY_BEAM
from kcg.optimize.work import total_s
from kcg.report.counts import how_many
from kcg.report.formats import format_share
from kcg.types import Schedule, Status

if TYPE_CHECKING:
    from kcg.judge.kept import KeptResults
    from kcg.judge.whole import Runner
    from kcg.optimize.budget import Budget
    from kcg.optimize.device import Device
    from kcg.optimize.settings import Settings
    from kcg.optimize.work import Captured, Measured, RegionWork

SEARCH_SHARE: Final = 1 / 3
"""Of what is left of a budget after the baselines, at least so much is for searching."""
LEAST_SHARE: Final = 1 / 4  # the same where the whole model could not be checked otherwise
WHOLE_SHARE_ON_GPU: Final = 1 / 3
"""Of what is left of a budget after the baselines on a GPU, the check of the whole takes no more, or no time is kept
for it: with a minute for Flux 768 what it took was half of what judging had, of a third of the kernels. With two it is
22 to 31 s of 107."""
UNSURE: Final = 1 / 3  # of a step as tinygrad schedules it, that the chosen one takes at least, until it is known
KERNELS_SHARE: Final = 1 / 2  # of the search, where regions of several kernels are searched after the kernels
KERNELS_SHARE_ON_GPU: Final = 1 / 3
"""The same on a GPU, where the first programs of regions are there by then, and what is judged meanwhile may be one."""
LEAST_REGIONS_S: Final = 40.0
"""On a GPU, for timing and searching regions of several kernels, and judging some: of Flux 768 they took 15, 12 and 16
s. Their first programs, most of a minute of 16 cores, are compiled while the kernels are searched."""
REGIONS_SEARCH_S: Final = 10.0
"""Of it, for the search itself, once they are timed as the schedules of their parts: the first program that was
measured of each region of Flux was within .5 % of the best of all 551."""
PLANS_S: Final = 3.0  # for the plans of what was judged, and the result of each: of Flux 768 four
PLAN_S: Final = 2.0  # for one, where no check of the whole compares them: of Flux 1024 two took 1.7 to 2.8 s
REGIONS_TOO: Final = 2.0
"""So many times what judging was found of kernels takes it takes with regions, before any of these is searched."""
JUDGING_SLOWER: Final = 1.4
"""So many times what is expected judging took on one NVIDIA H100, most of it of tile programs: 183 s for 119 with the
regions of Flux at 768, 251 for 190 at 1024. What a run itself has judged counts `JUDGED_S` seconds of it."""
JUDGED_S: Final = 5.0
WHOLE_S: Final = 10.0  # as which what is expected of the check of the whole counts beside what runs before took
LAUNCHES_S: Final = 2.0  # after which the first launches of what was seen to be faster end, though judging is over
ENDING_S: Final = {"CPU": 1.5}
"""For writing the result and its report, and ending. Elsewhere what the processes of a GPU take to end comes on top: of
twelve runs of Flux and of scripts on NVIDIA H200s the last was over 3 to 3.4 s after its last phase, of which 2 were
the report; 1.2 of these was loading what it is drawn with, which is done beside the search since."""
ENDING_ELSEWHERE_S: Final = 4.0
FEW: Final = 2  # measurements that a search must have time for, or it is not begun
MATTERS: Final = 0.05  # of the time: kernels that take a smaller part of it are not worth a run
ROUND_S: Final = 10.0  # a budget that is advised is a multiple of it

FINAL_RUNS: Final = 16  # launches that verify one finalist
SUBNORMAL_S: Final = {"CPU": 1e-9}
"""What one operation of a product of floats takes longer in the launch whose data have subnormal numbers: a processor
multiplies them in microcode. Of nine matmuls and convolutions it was 0.4 to 4 ns on two cores of an Intel Xeon, the
median 0.9, which made the launch 4 to 43 times as long."""
FLUSH_S: Final = {"CPU": 0.02}  # emptying the cache once, where this run took no samples
FLUSH_ELSEWHERE_S: Final = 0.001

VERIFY_S: Final = {"CPU": 0.55}
"""Verifying three seeds of one kernel, apart from its runs and its copies; elsewhere it follows from the checks. Seen
on two cores of an Intel Xeon: 0.57 to 0.65 for the 55 kernels of Flux mini, 0.4 to 0.5 for those of RoPE and a
ResNet."""
REFERENCES: Final = 24
"""So many references a comparison takes, of seeds, of what their data are chosen by, planted and with NaN: counted of
the nearest of 64 points to each of 20,000, one sum of 41 million terms."""
REFERENCE_S: Final = {"CPU": 4e-8}
"""For each of its terms, which matters where few outputs are sums of all that there is."""
CHECKS: Final = 5.0
"""So many times the preparing of a first measurement (inputs and references of one seed, loading, reading back) is what
loading and verifying take apart from the runs: five seeds and projections, but the references come from other
processes. On one NVIDIA H100 it was .1 s to prepare, and .2 to .6 s apart from the runs in 33 comparisons of eleven
kernels of Flux 1024, the mean .48 s with two sides. `Result.phases` shows what a run really took."""
CHECK_ELSEWHERE_S: Final = 0.1  # preparing one, where no first measurement was made in this run
COPY_S_PER_BYTE: Final = 1.5e-10  # outputs back from a GPU, whole, and compared on the host


@dataclass(frozen=True)
class Estimates:
    """What the rest of a run is expected to take, once tinygrad's own schedules are timed."""

    settings: Settings
    captured: Captured
    measured: Measured
    device: Device
    budget: Budget
    kept: KeptResults
    runner: Runner
    joins: bool = False  # whether regions of several kernels join the search of the kernels

    @property
    def works(self) -> Sequence[RegionWork]:
        return self.measured.works

    # ---- when what is to end ----

    def patience_s(self, expected_s: float) -> float | None:
        """See `Budget.patience_s`."""
        return self.budget.patience_s(expected_s)

    def search_until(self) -> float:
        """When the search is to end, by `time.monotonic`: when the rest of the budget is needed for what comes after
        it, but not before it has had its share. The share is that of both searches where regions of several kernels are
        searched after the kernels, and these have time left to be searched."""
        end, since, regions_at = self._end, self.measured.first_at, self.measured.at
        most_s = end - since - self._least_judging_s() - self._model_s()
        share_s = max(min(SEARCH_SHARE * (end - since), most_s), self._least_search_s())
        if self.measured.kernels_at is not None:
            share_s = max(share_s, min(regions_at + self._of_regions(REGIONS_SEARCH_S) - since, most_s))
        until = max(since + share_s, self._until_judging_fits())
        too_s = (REGIONS_TOO - 1) * self.judging_s() if self.device.is_cpu else 0.0
        kernels_s = self._kernels_share * (max(since + share_s, until - too_s) - since)
        return since + kernels_s if self._regions_follow(until - since - kernels_s) else until

    def _until_judging_fits(self) -> float:
        """How long the search may go on, so that what it found by now is judged in time. On a GPU that goes on beside
        it, for half of the device's time; where regions join it, as long as what it finds can be judged: what saves
        less a second than what waits to be judged waits too (`Allocator.elsewhere`)."""
        after_s = self._end - self.final_cost_s()
        if self.device.is_cpu or self.device.judges_at_end:
            return after_s
        if self.joins and (until := self.judge_until()) is not None:
            return until - self.slower * sum(map(self.comparing_s, self._cheapest())) - self._compile_s
        now, spared_s = time.monotonic(), self._least_judging_s()
        return min(after_s + max(after_s - now, 0.0), self._end - self._model_s() - spared_s)

    def _least_search_s(self) -> float:
        """What the search has in any case, in seconds: the measurements for whose sake it is begun."""
        return FEW * max((self.measuring_one_s(work) for work in self._largest_in_time()), default=0.0)

    def searched_until(self, work: RegionWork) -> float | None:
        """When a search of this region is to end, by `time.monotonic`: what it finds later cannot be judged before the
        budget is over. It has the measurements for whose sake it is begun where judging may then end a little later and
        still count as in time. None: whenever."""
        if self.late_at is None:
            return None
        judging_s = self.starting_s + self.slower * self.timing_s(work)
        few_s = self.measured.first_at + FEW * self.measuring_one_s(work)
        return min(self.late_at - judging_s, max(self._end - judging_s, few_s))

    def _regions_follow(self, seconds: float) -> bool:
        """Whether regions of several kernels are searched after the kernels, if so many seconds are left for them."""
        is_first = not self.joins and not any(work.proposed for work in self.works)
        return is_first and len(self.works) > 1 and self.wants_regions and seconds >= self._of_regions(LEAST_REGIONS_S)

    def judge_from(self) -> float | None:
        """When what was found has to be judged, so that this and the check of the whole end in time, by
        `time.monotonic`; None: whenever."""
        return None if self.budget.over_at is None else self.budget.over_at - self.final_cost_s()

    @property
    def wants_regions(self) -> bool:
        """Whether regions of several kernels are searched, or chosen without measurements: as the settings say, or else
        where the device can have programs of them, unless tinygrad searches by itself."""
        if self.settings.regions is not None:
            return self.settings.regions
        by_kcg = self.settings.measurements == 0 or not self.settings.search.startswith(TINY_BEAM)
        kinds = {kind for work in self.works for kind in work.others}
        return by_kcg and any(isinstance(kind_named(kind), JoinsKernels) for kind in kinds)

    def regions_fit(self) -> bool:
        """Whether a budget has time for regions of several kernels, beside judging what was found of single ones."""
        until, least_s = self.regions_until(), REGIONS_SEARCH_S if self.joins else LEAST_REGIONS_S
        return until is None or until - time.monotonic() >= self._of_regions(least_s)

    def regions_may_follow(self) -> bool:
        """Whether a budget will have time for regions of several kernels, now that the search of kernels begins."""
        if (until := self.regions_until()) is None:
            return True
        if self.joins:
            return self.regions_fit()
        left_s = (1 - self._kernels_share) * (until - time.monotonic())
        return left_s >= self._of_regions(LEAST_REGIONS_S)

    def regions_until(self) -> float | None:
        """When the search of regions of several kernels is to be over at the latest, by `time.monotonic`; None:
        whenever. On a CPU what was found of kernels is judged after it; on a GPU that goes on beside it, and what a
        region covers need not be."""
        if self.device.is_cpu or (until := self.judge_until()) is None:
            return self.judge_from()
        return until - self._least_judging_s()

    @property
    def _kernels_share(self) -> float:
        """What kernels have of a search that regions of several follow."""
        return KERNELS_SHARE if self.device.is_cpu else KERNELS_SHARE_ON_GPU

    def _of_regions(self, seconds: float) -> float:
        """What regions of several kernels have at least, where it says so for a GPU."""
        return 0.0 if self.device.is_cpu else seconds

    def judge_until(self) -> float | None:
        """When judging is to end, by `time.monotonic`, so that plans can be made and the whole model be checked in
        time. Where there is no time for that it has what still counts as in time: a search that ended half a second
        late would have found its last for nothing. None: whenever."""
        if (late_at := self.late_at) is None:
            return None
        if model_s := self._model_s():
            return self._end - model_s - self._of_regions(PLANS_S)
        return late_at - (self._of_regions(PLAN_S) if any(work.proposed for work in self.works) else 0.0)

    def launches_until(self, until: float | None) -> float | None:
        """When the first launches under stress of what was just seen to be faster are to end, by `time.monotonic`,
        where judging is to end at `until`: what took ten seconds to compare is not given up for want of one more, while
        the budget is not over."""
        over_at = self.budget.over_at
        if until is None or over_at is None:
            return until
        return max(until, min(over_at, time.monotonic() + LAUNCHES_S))

    def waits_s(self) -> float | None:
        """How long a search that is over waits for what it has with the device, in seconds: on a CPU until that is
        free, on a GPU no longer than what comes of it can be judged. None: as long as that takes."""
        patience_s, until = self.patience_s(0.0), self.judge_until()
        if patience_s is None or until is None or self.device.is_cpu:
            return patience_s
        return max(min(patience_s, until - time.monotonic()), 0.0)

    def compares_plans(self) -> bool:
        """Whether there is time for a check of the whole that compares plans, as far as a budget tells by now."""
        if self.late_at is None or self._model_s() > 0:
            return True
        return time.monotonic() + self.whole_s(plans=2) <= self.late_at

    def expected_s(self) -> float | None:
        """Seconds from start to result, as far as they are known."""
        budget = self.budget
        if budget.limit_s is not None or budget.ledger.deadline is None:
            return budget.limit_s
        return budget.ledger.deadline - budget.started + self.final_cost_s()

    def too_short(self) -> str:
        """Why there is no time to search in the budget, and what it would take; empty where there is."""
        if (budget_s := self.budget.limit_s) is None:
            return ""
        elapsed_s = self.measured.first_at - self.budget.started
        least_s = self._least_judging_s()
        if (untimed := self.measured.untimed) and not self._largest():
            return (
                f"the budget of {budget_s:g} s is too short to search in: after {elapsed_s:.0f} s tinygrad's own "
                f"schedules of {untimed} of {len(self.works)} kernels were not timed yet: "
                f"try --budget {self._advised_s():.0f}s"
            )
        if not self._largest() or self._largest_in_time():
            return ""
        return (
            f"the budget of {budget_s:g} s is too short to search in: starting and timing tinygrad's own schedules "
            f"took {elapsed_s:.0f} s, judging one kernel takes about {least_s:.0f} s: "
            f"try --budget {self._advised_s():.0f}s"
        )

    def too_short_for_some(self) -> str:
        """Whether a search in the budget leaves out regions since there is no time to judge them, and what it would
        take; empty where it leaves out none that matters."""
        works = self._by_time()
        total_s = sum(work.before_s for work in works)
        found = [w for w in works if w.before_s >= MATTERS * total_s and not self._can_be_judged(w)]
        if not found or self.budget.limit_s is None:
            return ""
        regions = [work.call.region for work in found]
        share = format_share(sum(work.before_s for work in found) / total_s)
        longest_s = max(map(self.comparing_s, found))
        single = len({region.id for region in regions}) == 1
        take, are, one = ("takes", "is", "it") if single else ("take", "are", "one")
        return (
            f"the budget of {self.budget.limit_s:g} s is too short to judge {how_many(regions)} that {take} {share} of "
            f"the time, which {are} not searched: judging {one} takes about {longest_s:.0f} s: "
            f"try --budget {self._advised_s():.0f}s"
        )

    def too_short_for_the_model(self) -> str:
        """Whether the budget leaves no room for the check of the whole model, and what it would take; empty where it
        does."""
        if self.budget.limit_s is None or self._model_s() or not (model_s := self.whole_s()):
            return ""
        return (
            f"the budget of {self.budget.limit_s:g} s leaves no time to check the whole "
            f"{self.settings.whole}, which takes about "
            f"{model_s:.0f} s: try --budget {self._advised_s():.0f}s"
        )

    def _advised_s(self) -> float:
        """A budget in which there is time for everything, in seconds."""
        last_s = self.starting_s + sum(map(self.comparing_s, self._largest())) + self.whole_s()
        rest_s = max(last_s / (1 - SEARCH_SHARE), last_s + FEW * self._measuring_s)
        missing = 0 if self._largest() else self.measured.untimed
        timed_s = self.measured.at - self.budget.started + missing * self._measuring_s
        wanted_s = max(timed_s + rest_s, 1.01 * (self.budget.limit_s or 0.0))
        return ROUND_S * math.ceil(wanted_s / ROUND_S)

    @property
    def late_at(self) -> float | None:
        """When verdicts that no check follows are to be there, by `time.monotonic`, so that the run still counts as in
        time; None: whenever. What a search is begun for, and whether it is judged, are decided by this alone."""
        ending_s = ENDING_S.get(self.device.choice.device, ENDING_ELSEWHERE_S)
        return None if self.budget.late_at is None else self.budget.late_at - ending_s

    @property
    def _end(self) -> float:
        assert self.budget.over_at is not None, "without a budget nothing has to end"
        return self.budget.over_at

    # ---- judging ----

    def is_due(self, work: RegionWork) -> bool:
        """Whether a region is judged: something was found for it, or it has no measurement that could stand. What came
        from a store was judged before. Of one that is proposed a program of its own has to be found: its parts are
        judged as kernels, and are no news."""
        if work.stored or work.is_unjudged or (self.measured.untimed and not work.is_timed):
            return False
        if work.proposed:
            return bool(work.offers or work.by_kind)
        if self.settings.measurements == 0 or work.own is None or work.own.status != Status.OK:
            return True
        return bool(work.offers or work.found)

    def likely(self) -> list[RegionWork]:
        """What is likely to be judged: of what is due all kernels, and of regions of several kernels, of which those of
        the best plans are, the ones that save most and leave each other their calls."""
        due = [work for work in self.works if self.is_due(work)]
        left = Counter({work.call.region.id: work.call.calls for work in self.works if not work.proposed})
        found = [work for work in due if not work.proposed]
        for work in sorted((work for work in due if work.proposed), key=lambda work: -work.saving_s):
            if work.taken <= left:
                left -= work.taken
                found.append(work)
        return found

    def sides(self) -> list[tuple[RegionWork, Schedule]]:
        """The baseline and the first candidate of everything that is likely to be judged."""
        return [(work, schedule) for work in self.likely() for schedule in work.firsts]

    def final_cost_s(self) -> float:
        """What judging what has a candidate, and then the whole model, is expected to take, in seconds.

        Before the search has found anything, judging one kernel is expected, and no check of the model: the search may
        go on in the time for that as long as it finds nothing.
        """
        found = self.settings.measurements == 0 or any(w.found or w.offers for w in self.works)
        return self.judging_s() + (self._model_s() if found else 0.0)

    def judging_s(self) -> float:
        """What re-timing and verifying is expected to take, in seconds: all that is likely, or else one kernel."""
        due = self.likely()
        if not due and self.budget.limit_s is None:
            return 0.0
        comparing_s = sum(self.comparing_s(w) for w in due or self._cheapest() if not self.kept.holds_first(w))
        return self.starting_s + self.compiling_s() + self.slower * comparing_s

    @property
    def starting_s(self) -> float:
        """What the process in which finalists are judged takes to be there, in seconds."""
        return 0.0 if self.device.judges else FRESH_CHILD_S

    @property
    def slower(self) -> float:
        """So many times what is expected of it judging takes: what is known of runs before, and more and more what its
        own judging took, on a CPU while the search went on."""
        return self.device.slower(costs.JUDGING, 1.0 if self.device.is_cpu else JUDGING_SLOWER, JUDGED_S)

    @contextlib.contextmanager
    def judging(self, work: RegionWork) -> Iterator[None]:
        """Inside, `work` is judged while a search goes on: take in how long it has the device for that, beside what it
        was expected to. With stress in it that says nothing of how long comparing others takes, nor where its process
        starts (`starting_s`); nor on a GPU, where compilers have the cores meanwhile: 23 kernels of Flux 768 took 17 s
        once the search was over, and 28 were reserved by what some of them had taken beside it."""
        known = self.kept.holds_first(work) or not self.device.judges or not self.device.is_cpu
        expected_s = 0.0 if known else self.timing_s(work)
        stress_s = 0.0 if known else self.comparing_s(work) - expected_s
        before_s = self.device.bench.service.used_s
        yield
        if not known and stress_s <= 0:
            self.device.took(costs.JUDGING, expected_s, self.device.bench.service.used_s - before_s)

    def compiling_s(self) -> float:
        """About how long it takes to compile what is to be judged and this run has not compiled, as one that goes on
        has not."""
        service = self.device.service
        wanted = [(w, s) for w, s in self.sides() if not service.has_compiled(w.call.region, s, *w.bindings)]
        return sum(work.compile_s.get(schedule, 0.0) for work, schedule in wanted) / service.compile_workers

    def comparing_s(self, work: RegionWork) -> float:
        """What judging one kernel is expected to take, in seconds, stress included until it is provisional: beside a
        candidate, if it has one, or if nothing has one yet."""
        return self.timing_s(work) + sum(self.stress_s(work, found[0]) for found in work.by_kind)

    def timing_s(self, work: RegionWork) -> float:
        """The same of re-timing and verifying alone, which is worth its time also where none is left for stress."""
        own_s = work.baseline_s
        firsts = [own_s, *(min(work.seconds_of(s), own_s) for s in work.firsts[1:])]
        if len(firsts) == 1 and not self.is_due(work):
            firsts.append(own_s)  # a candidate that may be found yet
        offers = 2 * sum(offer.schedule is not None for offer in work.offers)  # against the best of the others too
        once_s = self._comparison_s(work, firsts) + offers * self._comparison_s(work, [own_s, own_s])
        return len(work.bounds) * once_s

    def _comparison_s(self, work: RegionWork, sides_s: Sequence[float]) -> float:
        """What one comparison takes at one end of the values of a kernel's variables: each side's seconds are given."""
        device, flush_s = self.device.choice.device, self.flush_s
        verify_s = VERIFY_S.get(device, CHECKS * (self.measured.preparing_s or CHECK_ELSEWHERE_S))
        copies_s = 0.0 if self.device.is_cpu else COPY_S_PER_BYTE * work.bytes
        poison_s = 0.0 if self.device.is_cpu else flush_s  # what a sample has beside its kernel, a verified run has too
        again_s = sides_s[:-1] or sides_s  # of all but the last, each loaded and timed a second time
        samples = samples_for(max(sides_s), flush_s=flush_s)
        runs_s = sum(FINAL_RUNS * (seconds + poison_s) for seconds in sides_s)
        if (term_s := REFERENCE_S.get(device)) is not None:
            verify_s += REFERENCES * term_s * work.reference_terms
        if (slower_s := SUBNORMAL_S.get(device)) is not None:
            runs_s += len(sides_s) * slower_s * work.float_operations
        cold_s = sum(2 * seconds + samples * (seconds + flush_s) for seconds in [*sides_s, *again_s])
        warm_s = (1 + samples) * sum(sides_s)
        return verify_s + copies_s + runs_s + cold_s + warm_s

    def stress_s(self, work: RegionWork, schedule: Schedule, launches: int = stress.PROVISIONAL) -> float:
        """What is expected to be missing, in seconds, until a schedule has passed so many launches under stress; 0
        where it has none to pass."""
        service, region = self.device.service, work.call.region
        if not needs_stress(region, schedule, service.target):
            return 0.0
        binary = seen.binary_hash if (seen := work.observed(schedule)) is not None else ""
        left = len(work.bindings) * launches
        if binary:
            passed = (stress.passed(region, binary, *service.facts, values) for values in work.bindings)
            left = sum(max(launches - count, 0) for count in passed)
        return left * self.launch_s(work, schedule)

    def launch_s(self, work: RegionWork, schedule: Schedule) -> float:
        """What one launch of a schedule under stress is expected to take, in seconds, at one end of the values."""
        seconds, target = work.seconds_of(schedule), self.device.service.target
        return stress.expected_s(seconds, work.output_bytes, target) / stress.LAUNCHES

    @property
    def flush_s(self) -> float:
        """What emptying the cache once takes, by the samples of this run: the rest of their time was the kernels'."""
        taken, own_s = self.device.samples, self.device.samples_s
        spent_s = self.device.spread.spent_s["sample"]
        if taken and spent_s > own_s:
            return (spent_s - own_s) / taken
        return FLUSH_S.get(self.device.choice.device, FLUSH_ELSEWHERE_S)

    @property
    def _measuring_s(self) -> float:
        """What a search takes for measuring one schedule, in seconds: as long as a baseline took in this run, on one
        GPU. So many of them are measured at once as there are GPUs; what is judged has the first alone."""
        return (self.measured.baseline_s or FLUSH_S["CPU"]) / self.device.spread.size

    def measuring_one_s(self, work: RegionWork) -> float:
        """The same of a schedule of this region, by what tinygrad's own took, in this run or before."""
        if (own := work.own) is None or not own.samples_s:
            return self._measuring_s
        return own.compile_s + self.measured.preparing_s + sum(own.samples_s) + len(own.samples_s) * self.flush_s

    def _by_time(self) -> list[RegionWork]:
        """The kernels that are timed, those first that take most of the workload's time."""
        kernels = (work for work in self.works if work.baseline_s and not work.proposed)
        return sorted(kernels, key=lambda work: -work.before_s)

    def _largest(self) -> list[RegionWork]:
        """What takes most of the workload's time: where a search is likely to find something first."""
        return sorted((w for w in self.works if w.baseline_s), key=lambda w: -w.before_s)[:1]

    def _can_be_judged(self, work: RegionWork) -> bool:
        """Whether the budget has time to measure some schedules of a region and to judge it."""
        if self.late_at is None:
            return True
        searched_s = FEW * self.measuring_one_s(work)
        judging_s = self.starting_s + self.slower * self.comparing_s(work)
        return self.measured.first_at + searched_s + judging_s <= self.late_at

    def _largest_in_time(self) -> list[RegionWork]:
        """Of the kernels for which the budget has time the largest, if all of them take a part of the workload's time
        that matters."""
        works = self._by_time()
        fitting = (work for work in works if self._can_be_judged(work))
        if (first := next(fitting, None)) is None:
            return []
        least_s = MATTERS * sum(work.before_s for work in works)
        matters = first.before_s >= least_s or first.before_s + sum(work.before_s for work in fitting) >= least_s
        return [first] if matters else []

    def _cheapest(self) -> list[RegionWork]:
        """The kernel that is judged soonest, of those for which the budget has time and that matter by themselves: the
        search may go on until there is time for no other."""
        if not (first := self._largest_in_time()):
            return self._largest()
        works = self._by_time()
        least_s = min(MATTERS * sum(work.before_s for work in works), first[0].before_s)
        found = (work for work in works if work.before_s >= least_s and self._can_be_judged(work))
        return [min(found, key=self.comparing_s, default=first[0])]  # the search may have found more meanwhile

    def _least_judging_s(self) -> float:
        """What judging the first kernel takes, in seconds, the new process included."""
        return self.starting_s + sum(self.comparing_s(work) for work in self._largest_in_time() or self._largest())

    # ---- the whole model or script ----

    def whole_s(self, *, changed: int | None = None, plans: int = 1, rounds: int = 1, as_found: bool = True) -> float:
        """What checking the whole model or the script is expected to take, in seconds, with so many kernels changed in
        each of so many plans; without a number those that have a candidate, and at least one. A script runs with each
        plan in so many rounds. Not `as_found`: as if nothing were faster yet."""
        if changed is None:
            changed = max(sum(bool(work.found) for work in self.works), 1)
        step_s = sum(work.before_s for work in self.works if not work.proposed)
        found = [work for work in self.works if not work.proposed and work.baseline_s and work.best_s]
        saved_s = sum(work.before_s - work.after_s for work in found) if as_found else 0.0
        return self._whole_slower * self.runner.expected_s(
            Cost(
                changed=changed,
                plans=plans,
                rounds=rounds,
                step_s=step_s,
                chosen_s=max(total_s(self.works) or math.inf, UNSURE * step_s),
                saved_s=max(saved_s, 0.0),
                compile_s=self._compile_s,
            )
        )

    @property
    def _compile_s(self) -> float:
        """What compiling a program took in this run, in seconds, the mean."""
        spread = self.device.spread
        return spread.spent_s["compile"] / spread.compilations if spread.compilations else 0.0

    def took_whole(self, expected_s: float, spent_s: float) -> None:
        """The check of the whole was expected to take so long, and took so long, with rounds for which there was time:
        these say nothing. `expected_s` is of `whole_s`, which counts what earlier ones took; what is learned does not,
        or it would be learned of itself."""
        if self.runner.rounds == 1:
            self.device.took(self._whole_kind, expected_s / self._whole_slower, spent_s)

    @property
    def _whole_kind(self) -> str:
        return f"{costs.WHOLE} {self.runner.what}"

    @property
    def _whole_slower(self) -> float:
        """How many times what is expected of it the check of the whole takes."""
        return self.device.slower(self._whole_kind, 1.0, WHOLE_S)

    def _model_s(self) -> float:
        """What checking the whole model is expected to take, in seconds; 0 where the budget had no room for it when
        the search began: that does not depend on what is found and spent since."""
        left_s = math.inf
        if self.budget.over_at is not None:
            left_s = self.budget.over_at - self.measured.first_at
            most_s = (1 - LEAST_SHARE) * left_s - self._least_judging_s()
            if not self.device.is_cpu:
                most_s = min(most_s, WHOLE_SHARE_ON_GPU * left_s)
            if self.whole_s(changed=1, as_found=False) > most_s:
                return 0.0
        has_plan = any(work.proposed and work.by_kind for work in self.works)
        rounds = self.runner.rounds if has_plan and self.captured.workload.steps else 1
        return self.whole_s(plans=self.runner.plans if has_plan else 1, rounds=rounds)


class Pace:
    """Whether the budget allows judging one kernel more: what it is expected to take, by what those before it took."""

    def __init__(self, estimates: Estimates) -> None:
        self._estimates = estimates
        self._expected_s = self._spent_s = 0.0
        self._first = True  # in which the new process starts too

    def allows(self, work: RegionWork, *, improved: bool, referee_s: float = 0.0) -> bool:
        """Whether there is time to re-time and verify `work`, for which the reference is asked for so long besides."""
        estimates, until = self._estimates, self.until(improved=improved)
        if until is None or estimates.kept.holds_first(work):
            return True
        starting_s = estimates.starting_s if self._first else 0.0
        return time.monotonic() + starting_s + self._slower * estimates.timing_s(work) + referee_s <= until

    def left_s(self, works: Sequence[RegionWork]) -> float:
        """What judging these is expected to take, and after it the check of the whole, in seconds."""
        estimates = self._estimates
        comparing_s = sum(estimates.comparing_s(work) for work in works if not estimates.kept.holds_first(work))
        starting_s = estimates.starting_s + estimates.compiling_s() if works and self._first else 0.0
        return starting_s + self._slower * comparing_s + estimates.whole_s()

    @property
    def _slower(self) -> float:
        """So many times what is expected is what it takes, by this run where that has compared something already."""
        return self._spent_s / self._expected_s if self._expected_s else self._estimates.slower

    def until(self, *, improved: bool) -> float | None:
        """When judging is to end, by `time.monotonic`; None: whenever. While nothing is `improved` there is no model to
        check, and what still counts as in time is for verdicts: without one the search was for nothing."""
        return self._estimates.judge_until() if improved else self._estimates.late_at

    @contextlib.contextmanager
    def judging(self, work: RegionWork, *, referee_s: float = 0.0) -> Iterator[None]:
        """Inside, `work` is judged, for which the reference is asked for so long: take in how long that takes without
        it, beside what it was expected to. With stress in it that says nothing of how long comparing others takes, nor
        where nothing was compared: a verdict of an earlier run is taken over, or one that was there, or there is no
        reference."""
        estimates = self._estimates
        if estimates.kept.holds_first(work):
            yield
            return
        timing_s, begun, used_s = estimates.timing_s(work), time.monotonic(), estimates.device.bench.service.used_s
        stress_s = estimates.comparing_s(work) - timing_s
        yield
        if not self._first and stress_s <= 0 and estimates.device.bench.service.used_s > used_s:
            spent_s = max(time.monotonic() - begun - referee_s, 0.0)
            self._expected_s += timing_s
            self._spent_s += spent_s
            estimates.device.took(costs.JUDGING, timing_s, spent_s)
        self._first = False
