"""RESULT.json: a `Result` as a file, written whole or not at all, and read back with every field checked.

Beside all fields of the `Result` the object holds what a reader of `--json` wants at hand (`total_before_s`,
`total_after_s`, and `kernels`: one short entry per region); reading recomputes these and compares. AST texts are kept
once per kernel under `asts`, and regions name them by id, which is recomputed from the text as well.
Floats are exact. NaN and the infinities, which JSON lacks, are the strings `"nan"`, `"inf"` and `"-inf"`.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from kcg.errors import ResultError, ScheduleError
from kcg.files import meant_by, write_whole
from kcg.kernel.kinds import KINDS, parse, traits_of
from kcg.nouns import Document, Malformed, decode, encode, hints_of, kernels_of, no_constant, same_names, shown, unique
from kcg.types import Planning, Region, RegionResult, Result, Schedule, Status, malformed

SCHEMA = 21
"""The version of the file. A change of any field is a new number, never a silent one."""

ADDED = {
    2: {("Result", "model_check"), ("Target", "bandwidth_bytes_s"), ("RegionResult", "noise_floor")},
    3: {("Result", "predictor")},
    4: {("Result", "expectations"), ("Result", "clocks"), ("RegionResult", "opts"), ("RegionResult", "handwritten")},
    5: {("ModelCheck", "clock"), ("Result", "phases")},
    6: {("ModelCheck", "clocks_before"), ("ModelCheck", "clocks_after"), ("RegionResult", "clocks")},
    7: {("ModelCheck", "weights")},
    8: {
        ("Result", "left_out"),
        ("Result", "seen_as"),
        ("ModelCheck", "runs"),
        ("ModelCheck", "compared"),
        ("Verification", "unjudged"),
        ("Result", "revision"),
        ("Result", "dirty"),
        ("RegionResult", "ends"),
    },
    9: {("Region", "args"), ("Region", "outputs")},
    10: {("Result", "steps"), ("RegionResult", "replayed"), ("Toolchain", "assembler")},
    11: {("Result", "planning"), ("ModelCheck", "replaced"), ("ModelCheck", "left")},
    12: {
        ("Region", "again"),
        ("RegionResult", "again_s"),
        ("RegionInPlan", "again"),
        ("RegionInPlan", "nearby_s"),
        ("Planning", "unread"),
        ("Result", "allow_tf32"),
    },
    13: {("RegionResult", "origins"), ("ModelCheck", "spread_s"), ("ModelCheck", "untimed")},
    14: {("RegionResult", "store")},
    15: {("Result", "dropped")},
    16: {("Toolchain", "generator")},
    17: {("Result", "outlook"), ("Finalist", "launches"), ("Finalist", "launches_due")},
    18: {("Result", "verified_progress")},
    19: set(),
    20: {("Planning", "searched")},
    21: {("ModelCheck", "steady"), ("ModelCheck", "unsteady")},
}
"""Fields that came with each version: files of the versions before it are read without them, with their defaults. With
19 came no field: what was expected may be of kernels that regions run, and of schedules of any kind."""

MAX_BYTES = 512 * 1024 * 1024
"""Larger files are refused before they are read; a result of a thousand kernels takes about 30 MB."""

OUTCOMES = ("improved", "kept", "undecided", "not searched", "unjudged", "quarantined")
"""What became of a kernel; `RegionResult.note` says it in words. All but the first keep tinygrad's own schedule:

- kept: it was searched, and nothing that was found is faster and right;
- undecided: something was faster in the search, and there was no time to judge it;
- not searched: no other schedule was tried;
- unjudged: the reference cannot tell what is right;
- quarantined: tinygrad's own schedule is wrong, or fails.
"""

NOT_JUDGED = "not judged"
"""A region of several kernels, faster than its parts in the search, that no plan among the best has: it is in no
result."""

NO_OTHER = "there is no other schedule"
ONCE = "it runs outside of the steps alone, and takes little"
USED_UP = "the measurements were used up"
TIME_OVER = "the time for searching was over"
UNTIMED = "it was not timed, others are expected to take longer"
"""Notes of kernels that were not searched."""

_ADVICE = "use an intact copy or run the search again"


def to_dict(result: Result, *, asts: bool = True) -> dict[str, Any]:
    """The object that is stored: JSON values only; `from_dict` reads it back. `--json` prints it without `asts`, which
    are for programs that measure, unless they are asked for."""
    body: dict[str, Any] = {"schema": SCHEMA, **_derived(result), **encode(result)}
    if asts:
        body["asts"] = {kernel.id: kernel.ast_json for row in result.deployed for kernel in row.region.kernels}
    return body


def from_dict(document: Any) -> Result:
    """The `Result` of a document of `to_dict`.

    Raises:
        ResultError: another schema, a missing, unknown or ill-typed field, an id that its text does not have, or
            numbers that contradict each other.
    """
    try:
        return _read(document)
    except Malformed as error:
        raise ResultError(f"not a result that kcg can trust: {error}: {_ADVICE}") from None


def write_result(result: Result, path: Path) -> None:
    """Write `result` to `path`; its folder is made where it does not exist. An older file stays whole until the end.

    Raises:
        UsageError: the folder or the file cannot be written.
    """
    text = json.dumps(to_dict(result), indent=1, allow_nan=False) + "\n"
    write_whole(path, text.encode())


def read_result(path: Path | str) -> Result:
    """The `Result` of a file that `write_result` wrote.

    Raises:
        ResultError: no such file, truncated, corrupt, of another schema, or not a result at all.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:  # which may be a pipe, whose size nobody knows, or a device without an end
            size = os.fstat(file.fileno()).st_size
            # as many bytes as are asked for are allocated; a file of which all are holes is not read to be refused
            data = b"" if size > MAX_BYTES else file.read(size + 1 if size else MAX_BYTES + 1)
        if max(size, len(data)) > MAX_BYTES:
            raise ResultError(
                f"{path} is larger than {MAX_BYTES >> 20} MiB and no result: give the RESULT.json of a run"
            )
    except FileNotFoundError:
        what_to_do = meant_by(path, "give the RESULT.json of a run, as seen from this folder")
        raise ResultError(f"there is no {path}: {what_to_do}") from None
    except IsADirectoryError:
        raise ResultError(f"{path} is a folder: give the file of a run, such as {path / 'RESULT.json'}") from None
    except OSError as error:
        raise ResultError(f"cannot read {path}: {error.strerror}: give the RESULT.json of a run") from error
    try:
        document = json.loads(data.decode(), object_pairs_hook=unique, parse_constant=no_constant)
    except Malformed as error:
        raise ResultError(f"{path} is not a result: {error}: {_ADVICE}") from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())[:100]
        raise ResultError(f"{path} is truncated or not JSON ({reason}): {_ADVICE}") from None
    try:
        return _read(document)
    except Malformed as error:
        raise ResultError(f"{path} is not a result that kcg can trust: {error}: {_ADVICE}") from None


def _derived(result: Result) -> dict[str, Any]:
    """What follows from the fields, for readers without kcg. `before_s` and `after_s` are of all calls."""
    return {
        "total_before_s": encode(float(result.total_before_s)),
        "total_after_s": encode(float(result.total_after_s)),
        "plan_id": result.plan.id,
        "kernels": [_kernel_entry(row) for row in result.regions],
    }


def _kernel_entry(row: RegionResult) -> dict[str, Any]:
    return {
        "id": row.region.id,
        "name": row.chosen.name,
        "calls": int(row.calls),
        "before_s": encode(float(row.before_s)),
        "after_s": encode(float(row.after_s)),
        "outcome": row.outcome,
        "schedule": encode(row.chosen.schedule),
        "verified": row.chosen.verification.passed,
        **({"provisional": True} if row.chosen.provisional else {}),
    }


def _read(document: Any) -> Result:
    if not isinstance(document, dict) or "schema" not in document:
        raise Malformed("", "it has no schema number")
    schema = document["schema"]
    if type(schema) is not int or not 1 <= schema <= SCHEMA:
        raise Malformed("schema", f"{shown(schema)} is none of 1 to {SCHEMA}, which this kcg reads")
    later = frozenset(place for version, places in ADDED.items() if version > schema for place in places)
    names = {n for n in hints_of(Result) if ("Result", n) not in later}
    derived = ("total_before_s", "total_after_s", "plan_id", "kernels")
    same_names(set(document), {"schema", "asts", *derived, *names}, "")
    kernels = kernels_of(document["asts"])
    parts = {n: document[n] for n in names}
    result: Result = decode(parts, Result, "", of=Document(kernels, later))
    for field in fields(result.target):
        value = getattr(result.target, field.name)
        if isinstance(value, int | float) and not (math.isfinite(value) and value >= 0):
            raise Malformed(f"target.{field.name}", "the number is no size and no rate")
    for i, row in enumerate(result.regions):
        _check_region(row, f"regions[{i}]")
    if not result.allow_tf32 and any(traits_of(row.chosen.schedule).tf32 for row in result.regions):
        raise Malformed("allow_tf32", "a schedule rounds to tf32, which was not allowed")
    if result.planning is not None:
        _check_planning(result.planning, result, "planning")
    check = result.model_check
    counts = () if check is None else (check.steady, *(n for _, n in check.replaced), *(n for _, _, n in check.left))
    if any(count < 0 for count in counts):
        raise Malformed("model_check", "a count is negative")
    if check is not None and check.passed and None in (check.error, check.tolerance):
        raise Malformed("model_check", "it passed without an error, or without one that is tolerated")
    if result.steps < 0:
        raise Malformed("steps", "the count is negative")
    if any(seconds < 0 for _, seconds in result.phases):
        raise Malformed("phases", "a time is negative")
    if any(left.kernels < 0 or left.executions < 0 for left in result.left_out):
        raise Malformed("left_out", "a count is negative")
    for i, seen in enumerate(result.expectations):
        known = len(result.places if schema >= 19 else result.regions)
        if not 0 <= seen.region < known:
            raise Malformed(f"expectations[{i}].region", "it names a region that the result lacks")
        if any(time_s is not None and time_s < 0 for time_s in (seen.predicted_s, seen.corrected_s, seen.measured_s)):
            raise Malformed(f"expectations[{i}]", "a time is negative")
        _check_schedule(seen.schedule, f"expectations[{i}].schedule")
    if (outlook := result.outlook) is not None:
        seconds = outlook.unjudged_s, outlook.expected_s
        if min(outlook.unjudged, outlook.searches, *seconds) < 0 or not all(map(math.isfinite, seconds)):
            raise Malformed("outlook", "a count or a time is negative, or no number")
    for i, left in enumerate(result.dropped):
        if left.status not in (Status.WRONG, Status.UNJUDGED):
            raise Malformed(f"dropped[{i}].status", f"{shown(left.status)} is neither wrong nor unjudged")
        _check_schedule(left.schedule, f"dropped[{i}].schedule")
    try:
        datetime.fromisoformat(result.created)
    except ValueError:
        raise Malformed("created", f"{shown(result.created)} is not an ISO date and time") from None
    expected = _derived(result)
    for name in derived:
        if not _same(document[name], expected[name]):
            raise Malformed(name, "it contradicts the regions")
    return result if schema >= 8 else replace(result, regions=tuple(_in_todays_words(row) for row in result.regions))


def _in_todays_words(row: RegionResult) -> RegionResult:
    """A region of a file from before there were the outcomes `unjudged` and `not searched`."""
    if row.outcome == "quarantined" and row.note.startswith(once := "the kernel cannot be judged: "):
        note = row.note.removeprefix(once)
        base = replace(row.baseline, verification=replace(row.baseline.verification, unjudged=True, reason=note))
        return replace(row, baseline=base, chosen=base, outcome="unjudged", note=note)
    if row.outcome == "kept" and row.note.startswith(once := "not searched: "):
        return replace(row, outcome="not searched", note=row.note.removeprefix(once))
    return row


def _check_region(row: RegionResult, where: str) -> None:
    region: Region = row.region
    if wrong := malformed(region):
        raise Malformed(f"{where}.region", wrong)
    if row.outcome not in OUTCOMES:
        raise Malformed(f"{where}.outcome", f"{shown(row.outcome)} is none of {', '.join(OUTCOMES)}")
    if row.calls < 0 or row.measurements < 0 or not 0 <= row.replayed <= row.calls:
        raise Malformed(where, "a count is negative, or more are replayed than called")
    if any(calls < 1 for _, calls in row.origins):
        raise Malformed(f"{where}.origins", "a count is not positive")
    if row.again_s and not (region.again and 0 < row.again_s <= row.baseline.cold_s):
        raise Malformed(f"{where}.again_s", "it is no part of the baseline's time that is computed again")
    if any(min(end.share, end.before_s, end.after_s) < 0 for end in row.ends):
        raise Malformed(f"{where}.ends", "a share or a time is negative")
    most = 2 if len(region.kernels) == 1 else 4
    shares = sum(end.share for end in row.ends)
    if row.ends and not (2 <= len(row.ends) <= most and math.isclose(shares, 1, abs_tol=1e-9)):
        raise Malformed(f"{where}.ends", f"they are not {'two' if most == 2 else 'two to four'} whose shares sum to 1")
    if len({tuple(name for name, _ in end.variables) for end in row.ends}) > 1:
        raise Malformed(f"{where}.ends", "they name different variables")
    for name, finalist in (("baseline", row.baseline), ("chosen", row.chosen), ("opts", row.opts)):
        if finalist is None:
            continue
        if any(time_s < 0 for time_s in (finalist.cold_s, finalist.warm_s, *finalist.interval_s)):
            raise Malformed(f"{where}.{name}", "a time is negative")
        if not 0 <= finalist.launches <= finalist.launches_due:
            raise Malformed(f"{where}.{name}", "it passed more launches than it has to, or less than none")
        _check_schedule(finalist.schedule, f"{where}.{name}.schedule")


def _check_planning(planning: Planning, result: Result, where: str) -> None:
    rows = {row.region.id: row for row in result.regions if len(row.region.kernels) > 1}
    for i, region in enumerate(planning.regions):
        here, row = f"{where}.regions[{i}]", rows.get(region.region)
        if row is None:
            raise Malformed(f"{here}.region", "it names no region of several kernels of the result")
        if len(region.kernels) != len(row.region.kernels) or region.calls != row.calls:
            raise Malformed(here, "it contradicts the regions")
        if region.again != row.region.again:
            raise Malformed(f"{here}.again", "it contradicts the regions")
        if (region.saved_bytes < 0 and not region.again) or any(count < 0 for _, count in region.left):
            raise Malformed(here, "a size or a count is negative")
        if region.nearby_s is not None and not region.nearby_s[0] <= region.nearby_s[1] <= region.nearby_s[2]:
            raise Malformed(f"{here}.nearby_s", "it is no interval with its median")
    chosen = [plan for plan in planning.plans if plan.chosen]
    if len(chosen) != 1 or sorted(chosen[0].regions) != sorted(region.region for region in planning.regions):
        raise Malformed(f"{where}.plans", "the chosen one is not that of the regions")
    if any(min(plan.expected_s, plan.step_s or 0.0) < 0 for plan in planning.plans):
        raise Malformed(f"{where}.plans", "a time is negative")
    for name, counts in (("passed_over", planning.passed_over), ("unread", planning.unread)):
        if any(count < 0 for _, count in counts):
            raise Malformed(f"{where}.{name}", "a count is negative")
    for i, searched in enumerate(planning.searched):
        if len(searched.kernels) < 2 or searched.region in rows:
            raise Malformed(f"{where}.searched[{i}]", "it is no region of several kernels, or one of the plan")
    shown = {(row.region.id, row.variables) for row in result.regions}
    for i, row in enumerate(planning.inside):
        _check_region(row, f"{where}.inside[{i}]")
        if len(row.region.kernels) > 1 or row.calls or (row.region.id, row.variables) in shown:
            raise Malformed(f"{where}.inside[{i}]", "it is no kernel, or one that runs by itself")


def _same(stored: Any, derived: Any) -> bool:
    """Whether they agree. Sums may differ in their last digits: Python adds floats more exactly from 3.12 on."""
    if isinstance(stored, float) and isinstance(derived, float):
        return math.isclose(stored, derived, rel_tol=1e-12)
    return bool(stored == derived)


def _check_schedule(schedule: Schedule, where: str) -> None:
    if schedule.kind not in KINDS:
        raise Malformed(where, f"unknown kind {shown(schedule.kind)}")
    try:
        parse(schedule.kind, schedule.body)
    except ScheduleError as error:
        raise Malformed(where, str(error)) from None
