"""What is believed of a program's candidates, jobs and plans, given what was seen of it: log-normal and hierarchical.

    log time of a candidate = log of what was expected + offset of its group + offset of its part + noise

all normal; a group is the form of a region, or the kind of schedule of a kernel. `fitted` estimates the deviations and
what else there is from recordings of training programs alone; `posterior` conditions on what was seen in an episode
(conjugate, in closed form), and `sampled` draws worlds from that. Judged is timed times log-normal noise. The log
speedup of a step is a factor of that of the sum of its calls; the factor is normal. Jobs pass with a probability of
each; they take medians of training programs by what timing tinygrad's own schedule of the part took, corrected by what
was seen.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from kcg.errors import UsageError
from kcg.rl.plan_env import COMPILE, FAILED, JUDGE, JUDGED, LEAST_SPEEDUP, OWN, TIMED, Array, Replay, Seen, parts_of
from kcg.rl.plan_recording import JOBS

COUNTED: Final = 8.0  # candidates that what is believed of passing counts as much as
LEAST_VARIANCE: Final = 1e-4  # of logarithms: nothing is known better than by a hundredth
LEAST_JOB_S: Final = 0.01  # of timing tinygrad's own schedule, by which others are told: some recordings have 0
FEW: Final = 5  # jobs of a group, from which its median counts
PASSED: Final = len(JOBS)  # in place of the job in which a candidate fails


@dataclass(frozen=True)
class Belief:
    """Of any program, before anything of it was seen. Of logarithms, where they are of times."""

    offsets: Mapping[str, tuple[float, float]]  # of groups: mean and variance
    offset: tuple[float, float]  # of a group that no training program has
    part_variance: float
    noise_variance: float
    judged: tuple[float, float]  # of judged by timed, both by tinygrad's own: mean and deviation
    passes: tuple[float, ...]  # of `JOBS`: probability
    job_ratios: Mapping[tuple[str, int], float]  # by group and job; of the group "" of all: seconds by `own_job_s`
    factor: tuple[float, float, float]  # of a step: mean, deviation of programs, and of plans of one
    first_plan_ratio: float  # of what the first whole step took to what beginning took
    plan_s: float  # what others took


def fitted(replays: Sequence[Replay]) -> Belief:
    """The belief by training programs. Raises UsageError for none."""
    if not replays:
        raise UsageError("a belief needs training programs")
    residuals: defaultdict[str, list[Array]] = defaultdict(list)
    judged: list[float] = []
    counts = np.zeros((2, len(JOBS)))
    ratios: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    factors: list[Array] = []
    for replay in replays:
        for part, group in zip(parts_of(replay.recording), replay.program.groups, strict=True):
            timed = [one for one in part.candidates if one.timed_s is not None]
            if timed:
                residuals[group].append(np.log([(one.timed_s or 1.0) / one.expected_s for one in timed]))
            for one in timed:
                if one.judged_s is not None:
                    judged.append(math.log(one.judged_s / part.judged_own_s * part.own_s / (one.timed_s or 1.0)))
            for one in part.candidates:
                reached = JOBS.index(one.fails) if one.fails else PASSED
                done = (
                    min(reached + 1, PASSED) if one.fails or one.judged_s is not None else JUDGE
                )  # others: not judged
                for job in range(done):
                    counts[:, job] += job < reached, 1
                    ratio = one.job_s[job] / (1.0 if job == COMPILE else max(part.own_job_s, LEAST_JOB_S))
                    ratios[group, job].append(ratio)
                    ratios["", job].append(ratio)
        factors.append(_factors(replay))
    offsets, offset, part_variance, noise_variance = _variances(residuals)
    first_plans = [one.recording.first_plan_job_s / max(one.program.begin_s, 1e-3) for one in replays]
    medians = {key: float(np.median(found)) for key, found in ratios.items() if len(found) >= FEW or not key[0]}
    return Belief(
        offsets=offsets, offset=offset, part_variance=part_variance, noise_variance=noise_variance,
        judged=(float(np.mean(judged)), max(float(np.std(judged)), 1e-2)) if judged else (0.0, 0.05),
        passes=tuple(((counts[0] + 0.9) / (counts[1] + 1.0)).tolist()),
        job_ratios={**{("", job): 1.0 for job in range(len(JOBS))}, **medians},
        factor=_factor(factors),
        first_plan_ratio=float(np.median(first_plans)),
        plan_s=float(np.median([one.recording.plan_job_s for one in replays])),
    )  # fmt: skip


def _factors(replay: Replay) -> Array:
    """The log speedup of each recorded plan of a program, by that of the sum of its calls."""
    found = []
    for plan, (step_s, passed) in replay.steps.timed.items():
        log_speedup = float(replay.program.log_speedup(replay.steps.sum_s(plan)))
        if plan != OWN and passed and log_speedup > LEAST_SPEEDUP:
            found.append(math.log(replay.program.own_step_s / step_s) / log_speedup)
    return np.array(found)


def _factor(factors: Sequence[Array]) -> tuple[float, float, float]:
    some = [one for one in factors if len(one)]
    if not some:
        return 1.0, 0.2, 0.2
    means = np.array([one.mean() for one in some])
    within = np.concatenate([one - one.mean() for one in some])
    spread = float(means.std(ddof=1)) if len(means) > 1 else 0.2
    return float(means.mean()), max(spread, 0.02), max(float(within.std()), 0.02)


def _variances(
    residuals: Mapping[str, Sequence[Array]],
) -> tuple[dict[str, tuple[float, float]], tuple[float, float], float, float]:
    """By the method of moments: what groups are off, what an unknown one is, and variances of parts and of noise."""
    parts = [(group, one.mean(), len(one)) for group, found in residuals.items() for one in found]
    if not parts:
        return {}, (0.0, 0.25), 0.1, 0.1
    within = np.concatenate([one - one.mean() for found in residuals.values() for one in found])
    noise = max(float((within**2).sum()) / max(len(within) - len(parts), 1), LEAST_VARIANCE)
    means = {group: float(np.mean([one.mean() for one in found])) for group, found in residuals.items()}
    freedom = max(len(parts) - len(means), 1)
    between = sum((mean - means[group]) ** 2 for group, mean, _ in parts) / freedom
    of_part = max(between - noise * float(np.mean([1 / count for *_, count in parts])), LEAST_VARIANCE)
    errors = {group: (of_part + noise / np.mean([len(o) for o in residuals[group]])) / len(residuals[group])
              for group in means}  # fmt: skip
    middle = float(np.mean([*means.values()]))
    if len(means) > 1:
        of_group = max(float(np.var([*means.values()], ddof=1)) - float(np.mean([*errors.values()])), LEAST_VARIANCE)
    else:
        of_group = of_part
    offsets = {}
    for group, mean in means.items():
        precision = 1 / of_group + 1 / errors[group]
        offsets[group] = float((middle / of_group + mean / errors[group]) / precision), float(1 / precision)
    return offsets, (middle, of_group), of_part, noise


# ---- given what was seen


@dataclass(frozen=True, eq=False)
class Posterior:
    """What is believed in an episode. P parts, C candidates, G groups."""

    group: Array  # (P,) which of `group_offset` each part has
    group_offset: Array  # (2, G) mean and variance
    weight: Array  # (P,) of the group's offset in the part's
    own: Array  # (P,) the rest of the part's mean
    own_variance: Array  # (P,) given its group's
    noise_variance: float
    log_expected: Array  # (P, C) infinite where there is none
    judged: tuple[float, float]
    passes: Array  # (P, jobs)
    job_s: Array  # (P, jobs) expected, compiling by the number of cores
    plan_s: float  # of timing a whole step next
    factor: tuple[float, float]  # of a step by a plan that was not timed: mean and deviation

    @property
    def mean(self) -> Array:
        """(P,) of a part's offset."""
        return self.weight * self.group_offset[0, self.group] + self.own

    @property
    def variance(self) -> Array:
        """(P,) of a part's offset."""
        return self.weight**2 * self.group_offset[1, self.group] + self.own_variance


def posterior(belief: Belief, seen: Seen) -> Posterior:
    """What is believed given what was seen, and nothing else."""
    program = seen.program
    log_expected = np.log(program.expected_s)
    known = ~np.isnan(seen.timed_s)
    residuals = np.where(known, np.log(np.where(known, seen.timed_s, 1.0)) - np.where(known, log_expected, 0.0), 0.0)
    counts, sums = known.sum(1), residuals.sum(1)
    names = sorted({*program.groups})
    group = np.array([names.index(name) for name in program.groups])
    prior = np.array([belief.offsets.get(name, belief.offset) for name in names])
    has = counts > 0
    precision = np.where(has, 1 / (belief.part_variance + belief.noise_variance / np.maximum(counts, 1)), 0.0)
    of_group = 1 / prior[:, 1] + np.bincount(group, precision, len(names))
    pulled = np.bincount(group, precision * sums / np.maximum(counts, 1), len(names))
    inside = 1 / belief.part_variance + counts / belief.noise_variance
    return Posterior(
        group=group,
        group_offset=np.array([(prior[:, 0] / prior[:, 1] + pulled) / of_group, 1 / of_group]),
        weight=1 / belief.part_variance / inside,
        own=sums / belief.noise_variance / inside,
        own_variance=1 / inside,
        noise_variance=belief.noise_variance,
        log_expected=log_expected,
        judged=belief.judged,
        passes=_passes(belief, seen),
        job_s=_job_s(belief, seen),
        plan_s=_plan_s(belief, seen),
        factor=_factor_given(belief, seen),
    )


def _passes(belief: Belief, seen: Seen) -> Array:
    """(P, jobs): what is believed of each job, and what became of the part's candidates in it."""
    done = ~np.isnan(seen.job_s)
    failed = (seen.failed_in[:, :, None] == np.arange(len(JOBS))) & done
    count = done.sum(1)
    found: Array = (np.array(belief.passes) * COUNTED + count - failed.sum(1)) / (COUNTED + count)
    return found


def _job_s(belief: Belief, seen: Seen) -> Array:
    """(P, jobs): medians, corrected by the program's jobs, and these by the part's; what was believed counts as one."""
    program = seen.program
    ratios = np.array([
        [belief.job_ratios.get((group, job), belief.job_ratios["", job]) for job in range(len(JOBS))]
        for group in program.groups
    ])  # fmt: skip
    base = ratios * np.maximum(program.own_job_s, LEAST_JOB_S)[:, None]
    base[:, COMPILE] = ratios[:, COMPILE]
    done = ~np.isnan(seen.job_s)
    counts, sums = done.sum(1), np.where(done, seen.job_s, 0.0).sum(1)
    middle = base.mean(0)
    correction = (sums.sum(0) + middle) / np.maximum((base * counts).sum(0) + middle, 1e-12)
    found: Array = (base * correction + sums) / (1 + counts)
    found[:, COMPILE] /= program.cores
    return found


def _plan_s(belief: Belief, seen: Seen) -> float:
    if not seen.plan_jobs_s:
        return belief.first_plan_ratio * seen.program.begin_s
    later = seen.plan_jobs_s[1:]
    return (belief.plan_s + sum(later)) / (1 + len(later))


def _factor_given(belief: Belief, seen: Seen) -> tuple[float, float]:
    mean, between, within = belief.factor
    found = seen.factors()
    precision = 1 / between**2 + len(found) / within**2
    return (mean / between**2 + sum(found) / within**2) / precision, math.sqrt(1 / precision + within**2)


# ---- worlds


@dataclass(frozen=True, eq=False)
class Worlds:
    """S samples of what was not seen. What was seen is in all of them."""

    time_s: Array  # (S, P, C)
    saved_s: Array  # (S, P, C) by a call, should it be judged
    fails: Array  # (S, P, C) the job in which a candidate fails, by its column, or PASSED
    factor: Array  # (S,) of a step by a plan that was not timed


def sampled(belief: Posterior, seen: Seen, count: int, rng: np.random.Generator) -> Worlds:
    """Worlds of the posterior."""
    own_s, shape = seen.program.own_s, (count, *seen.program.shape)
    groups = belief.group_offset[0] + np.sqrt(belief.group_offset[1]) * rng.standard_normal(
        (count, belief.group_offset.shape[1])
    )
    parts = groups[:, belief.group] * belief.weight + belief.own
    parts += np.sqrt(belief.own_variance) * rng.standard_normal(parts.shape)
    noise = math.sqrt(belief.noise_variance) * rng.standard_normal(shape)
    time_s = np.exp(belief.log_expected + parts[:, :, None] + noise)
    time_s = np.where(np.isnan(seen.timed_s), time_s, seen.timed_s)
    mean, deviation = belief.judged
    judged_s = time_s * np.exp(mean + deviation * rng.standard_normal(shape))
    passed = rng.random((*shape, len(JOBS))) < belief.passes[:, None]
    passed[:, seen.status == TIMED, :JUDGE] = True
    passed[:, (seen.status == JUDGED) | (seen.status == FAILED)] = True  # they are over
    fails = np.where(passed.all(3), PASSED, (~passed).argmax(3)).astype(np.int8)
    factor = belief.factor[0] + belief.factor[1] * rng.standard_normal(count)
    return Worlds(time_s, own_s[:, None] - judged_s, fails, factor)
