"""Ways to choose what to do next in `kcg/Plan-v0`: functions of what was seen and what is believed.

- `stop`: at once.
- `everything`: time all candidates, judge all that ran, time the best plan.
- `random`: any action, and stopping with a probability.
- `heuristic`: what a search's loop does (`evaluation.search.loop`). The index of a chain of jobs with a candidate is
  what the plan is expected to gain by it, over the horizon, by the seconds it is expected to take: compile, time and,
  where it is fast enough, judge and stress. A chain may begin with candidates that come before it. The highest index is
  next, and below a threshold nothing: then the best plan's step is timed if that is expected to pay.
- `gradient`, the one-step knowledge gradient: what one more chain is expected to gain, less what it costs; the highest
  is next, as if nothing came after it.
- `rollouts`: of the best actions by the heuristic's index, of stopping and of timing the plan, the one of the least
  mean cost in worlds sampled from the posterior, the same for all, each completed by the heuristic.

Inside rollouts the heuristic is simpler: it learns of the offset of each part alone, not of its group; what jobs take
and how often they pass is not learned; which parts the expected plan has, and how much of a call's saving a step has,
is that of the decision; a plan's step is timed at the end or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import ndtr

from evaluation.plans.beliefs import PASSED, Belief, Posterior, Worlds, posterior, sampled
from kcg.rl.plan_env import (
    COMPILE,
    JUDGE,
    JUDGE_FASTEST,
    OWN,
    STOP,
    STRESS,
    TIME,
    TIME_NEXT,
    TIME_PLAN,
    TIMED,
    Array,
    Seen,
)

LOOK_AHEAD: Final = 4  # candidates of one chain
SAMPLES: Final = 200
HOPELESS: Final = 0.05  # an action whose index is a smaller share of the threshold is not tried in rollouts
TINY: Final = 1e-300


@dataclass(frozen=True)
class Setting:
    """What is tuned."""

    optimism: float = 0.0  # deviations by which times are expected to be shorter
    threshold: float = 1.0  # gained by spent, below which a chain is not begun
    replaced: float = 0.5  # of a gain of a part that the expected plan does without
    stopping: float = 0.02  # probability, of `random`
    width: int = 4  # actions that rollouts compare, beside stopping and timing the plan


Arm = Callable[[Seen, Belief, Setting, np.random.Generator], int]


def stop(seen: Seen, belief: Belief, setting: Setting, rng: np.random.Generator) -> int:
    """Deploy what is there."""
    return STOP


def everything(seen: Seen, belief: Belief, setting: Setting, rng: np.random.Generator) -> int:
    """The first action that may be done: timing before judging before the plan."""
    return int(np.flatnonzero(seen.masks())[0])


def random(seen: Seen, belief: Belief, setting: Setting, rng: np.random.Generator) -> int:
    """Any."""
    able = np.flatnonzero(seen.masks()[:STOP])
    return int(rng.choice(able)) if len(able) and rng.random() >= setting.stopping else STOP


def heuristic(seen: Seen, belief: Belief, setting: Setting, rng: np.random.Generator) -> int:
    """The chain of the highest index."""
    believed = posterior(belief, seen)
    index = _Chains(seen, believed, setting).indices(seen)
    best = int(index.argmax())
    return _action(best, len(seen.tried)) if index[best] > setting.threshold else _ending(seen, believed, setting)


def gradient(seen: Seen, belief: Belief, setting: Setting, rng: np.random.Generator) -> int:
    """The chain that gains most beyond what it costs."""
    believed = posterior(belief, seen)
    gained_s, spent_s = _Chains(seen, believed, setting).values(seen)
    net_s = gained_s - setting.threshold * spent_s
    best = int(net_s.argmax())
    return _action(best, len(seen.tried)) if net_s[best] > 0.0 else _ending(seen, believed, setting)


def rollouts(seen: Seen, belief: Belief, setting: Setting, rng: np.random.Generator) -> int:
    """The action of the least mean cost."""
    believed = posterior(belief, seen)
    chains = _Chains(seen, believed, setting)
    index = chains.indices(seen)
    best = np.argsort(-index, kind="stable")[: setting.width]
    chosen = [int(one) for one in best if index[one] > HOPELESS * setting.threshold]
    if not chosen:
        return _ending(seen, believed, setting)
    worlds = sampled(believed, seen, SAMPLES, rng)
    costs = Simulation(seen, believed, worlds, setting, chains).costs_s(chosen).mean(1)
    return [*(_action(one, len(seen.tried)) for one in chosen), STOP, TIME_PLAN][int(costs.argmin())]


ARMS: Final[Mapping[str, Arm]] = {
    "stop": stop, "everything": everything, "random": random, "heuristic": heuristic, "gradient": gradient,
    "rollouts": rollouts,
}  # fmt: skip


def _action(place: int, parts: int) -> int:
    """Of the place of a chain: those that time the next candidate of parts, then those that judge."""
    return TIME_NEXT + place if place < parts else JUDGE_FASTEST + place - parts


# ---- when nothing else pays


def _ending(seen: Seen, believed: Posterior, setting: Setting) -> int:
    """Time the best plan's step where that is expected to pay, and otherwise stop."""
    if not seen.masks()[TIME_PLAN]:
        return STOP
    value_s = seen.horizon * float(_timing_value_s(np.array(seen.plan()[1]), seen, believed))
    return TIME_PLAN if value_s > setting.threshold * believed.plan_s else STOP


def _timed_s(seen: Seen) -> float:
    """The fastest step that was timed."""
    return min([seen.program.own_step_s, *(one.step_s for one in seen.plans.values() if one.passed)])


def _timing_value_s(sum_s: Array, seen: Seen, believed: Posterior) -> Array:
    """What timing a plan of such a sum is expected to save of a step: the faster one is deployed then."""
    (mean, deviation), known_s = believed.factor, _timed_s(seen)
    log_speedup = seen.program.log_speedup(sum_s)
    spread = np.maximum(deviation * log_speedup, 1e-9)
    log_step = math.log(seen.program.own_step_s) - mean * log_speedup
    below, _ = _improvement(np.log(known_s), log_step, spread)
    found: Array = below - np.maximum(known_s - np.exp(log_step + spread**2 / 2), 0.0)
    return np.maximum(found, 0.0)


# ---- what chains are expected to gain and to take


class _Chains:
    """Chains of one decision: what does not change while worlds are simulated."""

    def __init__(self, seen: Seen, believed: Posterior, setting: Setting) -> None:
        self.program, self.believed, self.setting, self.horizon = seen.program, believed, setting, seen.horizon
        passes, job_s = believed.passes, believed.job_s
        self._judging_s = job_s[:, JUDGE] + passes[:, JUDGE] * job_s[:, STRESS]
        self._timing_s = job_s[:, COMPILE] + passes[:, COMPILE] * job_s[:, TIME]
        self._runs, self._right = passes[:, COMPILE] * passes[:, TIME], passes[:, JUDGE] * passes[:, STRESS]
        missing = np.full((len(self._runs), LOOK_AHEAD), np.inf)
        self._log_expected = np.concatenate([believed.log_expected, missing], 1)
        own, total, factor = seen.program.own_step_s, seen.program.total_s, believed.factor[0]
        slope = factor * own / total * math.exp((1.0 - factor) * float(seen.program.log_speedup(seen.plan()[1])))
        self._gains = self.horizon * slope * seen.program.places.alone
        self._lasting = np.where(self._expected_plan(seen) > 0.0, 1.0, setting.replaced)

    def _expected_plan(self, seen: Seen) -> Array:
        """(P,): how often each part runs in the plan that is expected, if everything passed."""
        program, believed = self.program, self.believed
        untried = np.arange(program.shape[1]) >= seen.tried[:, None]
        expected_s = np.exp(believed.log_expected + believed.mean[:, None])
        known_s = np.where(seen.status == TIMED, seen.timed_s, np.inf)
        least_s = np.minimum(np.where(untried, expected_s, np.inf).min(1), known_s.min(1))
        saved_s = np.maximum(seen.savings, program.own_s - np.minimum(least_s, program.own_s))
        return program.places.weights(saved_s[None])[0]

    def indices(self, seen: Seen) -> Array:
        """(2P,): of timing the next candidate of each part, then of judging its fastest."""
        gained_s, spent_s = self.values(seen)
        return gained_s / np.maximum(spent_s, TINY)

    def values(self, seen: Seen) -> tuple[Array, Array]:
        """(2P,) twice: what the horizon is expected to gain, and what it takes."""
        parts = np.arange(len(seen.tried))
        entry_s = self.program.places.entries(seen.savings[None], self.program.own_s)[0]
        waiting_s = np.where(seen.fastest >= 0, seen.timed_s[parts, np.maximum(seen.fastest, 0)], np.inf)
        return self.of(parts, seen.tried, entry_s, waiting_s, (self.believed.mean, self.believed.variance))

    def of(
        self, part: Array, tried: Array, entry_s: Array, waiting_s: Array, offset: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        """The same of n parts of any worlds, given how many candidates were tried, how fast a call has to be, what the
        fastest that waits takes, and mean and variance of the offset."""
        judged_mean, judged_deviation = self.believed.judged
        optimism, right = self.setting.optimism, self._right[part]
        gains = self._gains[part] * self._lasting[part]
        # judge the fastest
        has = np.isfinite(waiting_s)
        log_waiting = np.log(np.where(has, waiting_s, 1.0)) + judged_mean
        log_entry = np.log(np.maximum(entry_s, TINY))
        alone, _ = _improvement(log_entry, log_waiting - optimism * judged_deviation, judged_deviation)
        judge_gain = np.where(has, gains * right * alone, 0.0)
        judge_s = self._judging_s[part]
        # time the next ones, judge the best of them
        deviation = np.sqrt(offset[1] + self.believed.noise_variance + judged_deviation**2)[:, None]
        logs = self._log_expected[part[:, None], tried[:, None] + np.arange(LOOK_AHEAD)]
        exists = np.isfinite(logs)
        logs = np.where(exists, logs, 0.0) + (offset[0] + judged_mean)[:, None] - optimism * deviation
        log_beside = np.where(has, np.minimum(log_entry, log_waiting), log_entry)
        alone, _ = _improvement(log_entry[:, None], logs, deviation)
        beside, better = _improvement(log_beside[:, None], logs, deviation)
        passes = np.where(has, right, 0.0)[:, None]
        gain = np.where(exists, (1.0 - passes) * alone + passes * beside, 0.0)
        gain = np.maximum.accumulate(gain, 1) * (gains * right * self._runs[part])[:, None]
        spent = self._timing_s[part][:, None] * np.arange(1, LOOK_AHEAD + 1)
        better = np.maximum.accumulate(np.where(exists, better, 0.0), 1)
        spent = spent + (self._runs[part] * judge_s)[:, None] * better
        best = (gain / np.maximum(spent, TINY)).argmax(1)
        rows = np.arange(len(part))
        return (
            np.concatenate([gain[rows, best], judge_gain]),
            np.concatenate([spent[rows, best], judge_s]),
        )


def _improvement(log_limit: Array, log_mean: Array, deviation: Array | float) -> tuple[Array, Array]:
    """By how much a log-normal time is expected to be below a limit, what is above counting as nothing (Jones, Schonlau
    and Welch, 1998), and the probability that it is."""
    z = (log_limit - log_mean) / deviation
    below = ndtr(z)
    mean = np.exp(log_mean + np.square(deviation) / 2)
    return np.maximum(np.exp(log_limit) * below - mean * ndtr(z - deviation), 0.0), below


# ---- worlds in which the heuristic goes on


class Simulation:
    """What actions cost in sampled worlds, each completed by the heuristic. A row is an action in a world."""

    def __init__(
        self, seen: Seen, believed: Posterior, worlds: Worlds, setting: Setting, chains: _Chains | None = None
    ) -> None:
        self._seen, self._believed, self._worlds, self._setting = seen, believed, worlds, setting
        self._chains = chains or _Chains(seen, believed, setting)
        self._program = seen.program

    def costs_s(self, chosen: list[int]) -> Array:
        """(actions + 2, S): of each of these places of chains, of stopping and of timing the plan, in seconds."""
        samples, parts = len(self._worlds.factor), len(self._seen.tried)
        self._world = np.tile(np.arange(samples), len(chosen))
        rows = len(self._world)
        waiting = np.where(self._seen.status == TIMED, self._seen.timed_s, np.inf)
        self._waiting = np.repeat(waiting[None], rows, 0)
        self._tried = np.repeat(self._seen.tried[None], rows, 0)
        self._savings = np.repeat(self._seen.savings[None], rows, 0)
        self._sums, self._counts = np.zeros((rows, parts)), np.zeros((rows, parts))
        self._spent = np.full(rows, self._seen.seconds)
        entries = self._program.places.entries(self._seen.savings[None], self._program.own_s)
        self._entries = np.repeat(entries, rows, 0)
        self._index = np.repeat(self._chains.indices(self._seen)[None], rows, 0)
        active, places = np.arange(rows), np.repeat(chosen, samples)
        while len(active):
            self._act(active, places)
            places = self._index[active].argmax(1)
            goes_on = self._index[active, places] > self._setting.threshold
            active, places = active[goes_on], places[goes_on]
        return np.concatenate([self._ended_s().reshape(len(chosen), samples), *self._at_once_s()])

    def _act(self, rows: Array, places: Array) -> None:
        parts = len(self._seen.tried)
        is_timing = places < parts
        timing, judging = rows[is_timing], rows[~is_timing]
        part, judged = places[is_timing], places[~is_timing] - parts
        self._time(timing, part)
        others = self._judge(judging, judged)
        self._update(np.concatenate([timing, judging, others[0]]), np.concatenate([part, judged, others[1]]))

    def _time(self, rows: Array, part: Array) -> None:
        number, world = self._tried[rows, part], self._world[rows]
        fails, time_s = self._worlds.fails[world, part, number], self._worlds.time_s[world, part, number]
        job_s = self._believed.job_s[part]
        self._spent[rows] += job_s[:, COMPILE] + (fails > COMPILE) * job_s[:, TIME]
        runs = fails > TIME
        self._waiting[rows, part, number] = np.where(runs, time_s, np.inf)
        self._sums[rows, part] += np.where(runs, np.log(time_s) - self._believed.log_expected[part, number], 0.0)
        self._counts[rows, part] += runs
        self._tried[rows, part] += 1

    def _judge(self, rows: Array, part: Array) -> tuple[Array, Array]:
        """Returns in which rows how fast a call has to be has changed, and of which part."""
        number, world = self._waiting[rows, part].argmin(1), self._world[rows]
        fails, saved_s = self._worlds.fails[world, part, number], self._worlds.saved_s[world, part, number]
        job_s = self._believed.job_s[part]
        self._spent[rows] += job_s[:, JUDGE] + (fails > JUDGE) * job_s[:, STRESS]
        self._waiting[rows, part, number] = np.inf
        better = (fails == PASSED) & (saved_s > self._savings[rows, part])
        changed = rows[better]
        self._savings[changed, part[better]] = saved_s[better]
        if not len(changed):
            return changed, changed
        before = self._entries[changed]
        self._entries[changed] = self._program.places.entries(self._savings[changed], self._program.own_s)
        row, other = np.nonzero(np.abs(self._entries[changed] - before) > 1e-9 * self._program.own_s)
        return changed[row], other

    def _update(self, rows: Array, part: Array) -> None:
        """The index of chains of parts of which something has changed."""
        variance, noise = self._believed.variance[part], self._believed.noise_variance
        precision = 1 / variance + self._counts[rows, part] / noise
        mean = (self._believed.mean[part] / variance + self._sums[rows, part] / noise) / precision
        waiting_s = self._waiting[rows, part].min(1)
        tried, entry_s = self._tried[rows, part], self._entries[rows, part]
        gained_s, spent_s = self._chains.of(part, tried, entry_s, waiting_s, (mean, 1 / precision))
        index = gained_s / np.maximum(spent_s, TINY)
        self._index[rows, part] = index[: len(part)]
        self._index[rows, len(self._seen.tried) + part] = index[len(part) :]

    def _ended_s(self) -> Array:
        """What rows cost at their end, where a plan that is new is timed if that is expected to pay."""
        seen = self._seen
        sums = (self._program.places.weights(self._savings) * self._savings).sum(1)
        is_new = np.abs(sums - seen.plan()[1]) > 1e-12 * self._program.own_step_s
        is_new |= (seen.plan()[0] != OWN) and (seen.plan()[0] not in seen.plans)
        value_s = seen.horizon * _timing_value_s(sums, seen, self._believed)
        timed = is_new & (value_s > self._setting.threshold * self._believed.plan_s)
        step_s = self._step_s(sums, self._worlds.factor[self._world], is_new, timed)
        return self._spent + timed * self._believed.plan_s + seen.horizon * step_s

    def _at_once_s(self) -> tuple[Array, Array]:
        """(1, S) twice: what stopping costs, and timing the plan and stopping then; infinite where it may not be."""
        seen = self._seen
        plan, sum_s, _ = seen.plan()
        is_new = plan != OWN and plan not in seen.plans
        found = []
        for timed in (False, True):
            step_s = self._step_s(np.array(sum_s), self._worlds.factor, np.array(is_new), np.array(timed))
            cost_s = seen.seconds + timed * self._believed.plan_s + seen.horizon * step_s
            found.append(np.where(timed and not is_new, np.inf, cost_s)[None])
        return found[0], found[1]

    def _step_s(self, sums: Array, factor: Array, is_new: Array, timed: Array) -> Array:
        """A step of what is deployed, by the rule of the environment."""
        known_s, own = _timed_s(self._seen), self._program.own_step_s
        log_speedup = self._program.log_speedup(sums)
        true_s = own * np.exp(-factor * log_speedup)
        deploys_new = is_new & (own * np.exp(-self._seen.factor() * log_speedup) < known_s)
        found: Array = np.where(is_new & timed, np.minimum(true_s, known_s), np.where(deploys_new, true_s, known_s))
        return found
