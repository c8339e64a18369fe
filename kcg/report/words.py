"""What is said of a result, for the console and for the page alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kcg.cli import counted
from kcg.report.counts import how_many
from kcg.report.formats import format_moved, format_seconds, format_speedup
from kcg.report.times import is_timed, totals_of
from kcg.types import ModelCheck, Planning, Recompute, RegionInPlan, RegionResult, Result, Variables


def origin_of(row: RegionResult) -> str:
    """Where most calls of a kernel come from, with how many where others come from elsewhere; empty where that is not
    known: `double_blocks.*.img_attn.qkv`, `double_blocks.*.img_mlp.0 (19) and 1 more`."""
    if not row.origins:
        return ""
    (label, calls), *others = row.origins
    return f"{label} ({calls}) +{len(others)}" if others else label


def layers_of(result: Result) -> dict[str, str]:
    """The layer or line that most calls of each region of several kernels come from, by its id, with how many others
    there are; nothing of one of which that is not known."""
    return {
        row.region.id: row.origins[0][0] + (f" and {len(row.origins) - 1} more" if len(row.origins) > 1 else "")
        for row in result.regions
        if len(row.region.kernels) > 1 and row.origins
    }


def end_of(name: str, width: int) -> str:
    """A name in so many columns: of a path its end says the most."""
    return name if len(name) <= width else "…" + name[len(name) - max(width - 1, 0) :]


def provisional_line(result: Result) -> str:
    """How many programs have launches under stress to pass yet, and what to do; empty where none has."""
    if not (rows := result.provisional):
        return ""
    which = "1 program is" if len(rows) == 1 else f"{len(rows)} programs are"
    least, due = min(row.chosen.launches for row in rows), max(row.chosen.launches_due for row in rows)
    passed = "passed" if len(rows) == 1 else "each passed at least"
    return f"{which} provisional, {passed} {least:,} of {due:,} launches under stress: kcg check completes that"


def steps_line(planning: Planning) -> str:
    """The whole steps that were compared, the chosen one first, and how many are wrong."""
    timed = [plan for plan in planning.plans if plan.step_s is not None and plan.passed is not False]
    shown = []
    for plan in sorted(timed, key=lambda plan: not plan.chosen):
        what = f"with {counted(len(plan.regions), 'region')}" if plan.regions else "every kernel alone"
        shown.append(f"{format_seconds(plan.step_s)} {'chosen' if plan.chosen else what}")
    wrong = sum(plan.passed is False for plan in planning.plans)
    return "whole steps: " + ", ".join([*shown, *([f"{wrong} wrong"] if wrong else [])])


def plan_line(result: Result, planning: Planning) -> str:
    """What the plan comes to, and why it was chosen."""
    if not planning.regions:
        return f"plan: every kernel stays alone: {planning.why}"
    calls = sum(one.calls for one in planning.regions)
    saved = format_seconds(sum(one.calls * one.counted_s for one in planning.regions))
    moved = format_moved(sum(one.calls * one.saved_bytes for one in planning.regions))
    return (
        f"plan: {counted(len(planning.regions), 'region')} of several kernels became one program each, run "
        f"{counted(calls, 'time')}: saves {saved} and {moved} in all{_unread(planning)}; {planning.why}"
    )


def _unread(planning: Planning) -> str:
    """Which calls run nowhere, since whoever reads what they store computes it again."""
    many = sum(count for _, count in planning.unread)
    names = ", ".join(name for name, _ in planning.unread)
    return f"; {counted(many, 'call')} left out, which all who read them compute again ({names})" if many else ""


def _kernels(one: RegionInPlan) -> str:
    """Those in whose place a region runs, and those that it computes again."""
    own = " + ".join(name for number, name in enumerate(one.kernels) if number not in one.again)
    again = " + ".join(one.kernels[number] for number in one.again)
    return f"{own}, computing {again} again" if again else own


class PlanRow(NamedTuple):
    """A region of the plan in words."""

    layer: str  # that its calls come from; empty where that is not known
    form: str
    kernels: str  # in order
    calls: str
    saved: str
    interval: str  # of it
    bytes: str  # that a call does not store and read
    bytes_in_all: str  # that all of its calls do not; empty where that is nothing
    put: str


def plan_rows(result: Result, planning: Planning) -> list[PlanRow]:
    """The regions of the plan, what saves most first."""
    layers = layers_of(result)
    return [
        PlanRow(
            layers.get(one.region, ""),
            one.form,
            _kernels(one),
            str(one.calls),
            format_seconds(one.counted_s),
            _interval(one),
            format_moved(one.saved_bytes),
            format_moved(one.calls * one.saved_bytes) if one.saved_bytes else "",
            put_in(one, result.model_check),
        )
        for one in planning.regions
    ]


def _interval(one: RegionInPlan) -> str:
    """Of what one call of a region saves among the calls around it; empty where it was timed alone."""
    return "" if one.nearby_s is None else f"{format_seconds(one.nearby_s[0])} to {format_seconds(one.nearby_s[2])}"


def put_in(one: RegionInPlan, check: ModelCheck | None) -> str:
    """Whether a region was put in everywhere it fits, as the check of the whole saw it; where there was none, what was
    captured tells why it would not be."""
    left: Sequence[tuple[str, int]] = one.left
    where = "not seen"
    if check is not None and (check.after_s is not None or check.runs):
        left = [(why, count) for region, why, count in check.left if region == one.region]
        sets = dict(check.replaced).get(one.region, 0)
        if check.runs:  # a script plans its step less often than it runs it
            where = "nowhere" if not sets else f"{sets} times" if left else "everywhere"
        else:
            where = "everywhere" if sets >= one.calls and not left else f"{sets} of {one.calls}"
    return "; ".join([where, *(f"{count} left: {why}" for why, count in left)])


class StepRow(NamedTuple):
    """A plan whose whole step was compared, in words."""

    plan: str
    expected: str
    measured: str
    fate: str


def step_rows(planning: Planning) -> list[StepRow]:
    """The plans whose whole steps were compared, the best expected first."""
    rows = []
    for plan in planning.plans:
        what = f"{counted(len(plan.regions), 'region')} of several kernels" if plan.regions else "every kernel alone"
        output = {True: "right", False: "wrong", None: ""}[plan.passed]
        fate = ": ".join(filter(None, [output, plan.note]))
        fate = "; ".join(filter(None, ["chosen" if plan.chosen else "", fate]))
        rows.append(StepRow(what, format_seconds(plan.expected_s), format_seconds(plan.step_s), fate))
    return rows


def passed_over_lines(planning: Planning) -> list[str]:
    """Why candidate regions are not in the plan, counted."""
    return [
        f"{counted(count, 'candidate region is', 'candidate regions are')} not in it: {why}"
        for why, count in planning.passed_over
    ]


class StepTimes(NamedTuple):
    """What one step takes, or what runs once outside of the steps, in words."""

    what: str
    before: str
    after: str  # empty where nothing improved
    rest: str

    @property
    def line(self) -> str:
        """All of it."""
        return f"{self.what}: {' → '.join(filter(None, [self.before, self.after]))}{self.rest}"


def step_lines(result: Result) -> list[str]:
    """See `step_times`, a line each."""
    return [times.line for times in step_times(result)]


def step_times(result: Result) -> list[StepTimes]:
    """What one step of the steady state takes, as a whole where that was timed, and apart from it what runs once;
    nothing where there are no steps, or nothing was timed. Where nothing improved there is one time."""
    totals = totals_of(result)
    if (step := result.step_s) is None or totals.before_s is None:
        return []
    (before, after), how, check = step, "sum of its kernels", result.model_check
    if check is not None and check.before_s is not None and check.after_s is not None:
        how = f"whole steps: {check.clock}; the sum of its kernels {format_seconds(before)} → {format_seconds(after)}"
        before, after = check.before_s, check.after_s
    what = f"one step of {result.steps}"
    if totals.after_s is None:
        found = [StepTimes(what, format_seconds(before), "", f" ({how})")]
    else:
        faster = f", {format_speedup(before, after)} as fast ({how})"
        found = [StepTimes(what, format_seconds(before), format_seconds(after), faster)]
    if any(is_timed(row) for row in result.once):
        before, after = (sum(getattr(r, name) for r in result.once) for name in ("before_s", "after_s"))
        verb = "runs" if len(result.once) == 1 else "run"
        what = f"outside of the steps {how_many(row.region for row in result.once)} {verb}"
        times = [before, after] if any(row.outcome == "improved" for row in result.once) else [before]
        *first, last = map(format_seconds, times)
        in_all = f"{last} in all"
        found.append(StepTimes(what, first[0], in_all, "") if first else StepTimes(what, in_all, "", ""))
    return found


def done_with(found: Recompute) -> str:
    """What a kernel does with a contraction that had better be stored."""
    if found.factor <= 1:
        return "reduces a product at once"
    waste = f"{found.calls} × {found.wasted_operations / 1e6:,.1f} MFLOP wasted"
    return f"computes a matmul {found.factor:.1f} times ({waste})"


def name_of(row: RegionResult) -> str:
    """What a kernel is called."""
    return row.baseline.name or row.region.id[:12]


def checked_as(result: Result) -> str:
    """What is checked as a whole: `model`, `script` or `function`."""
    from kcg.workloads import function, script

    kinds = {script.PREFIX: "script", function.PREFIX: "function"}
    return next((kind for prefix, kind in kinds.items() if result.workload.startswith(prefix)), "model")


def repeated(runs: int) -> str:
    """That a script ran so many times more, and what that means."""
    times = {1: "once", 2: "twice"}.get(runs, f"{runs} times")
    return f"it ran {times} more to find out, and its side effects with it"


def replayed(check: ModelCheck) -> str:
    """What replays of the step with the same inputs showed, behind the check of the whole; empty where none ran."""
    if check.unsteady:
        return f"; {check.unsteady}"
    return f", and {counted(check.steady, 'replay')} of the step gave the same, bit for bit" if check.steady else ""


def values_text(*ends: Variables) -> str:
    """`position 12` of one set of values, `position 1 to 12` of two; empty where the kernel has no variables.

    tinygrad's own variables, whose names begin with an underscore, are left out.
    """
    pairs = zip(ends[0], ends[-1], strict=True) if ends else ()
    return ", ".join(
        f"{name} {low}" if low == high else f"{name} {low} to {high}"
        for (name, low), (_, high) in pairs
        if not name.startswith("_")
    )


def values_of(row: RegionResult) -> str:
    """The values of its variables with which a kernel of a result ran, in words."""
    ran = [end.variables for end in row.ends if end.share] or [row.variables]
    return values_text(*ran)
