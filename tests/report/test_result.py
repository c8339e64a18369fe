"""RESULT.json comes back exactly as it was written, or not at all."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kcg.errors import ExitCode, ResultError, UsageError
from kcg.kernel.source.body import SourceBody, source_schedule
from kcg.report import result as result_of_a_run
from kcg.report.result import ADDED, OUTCOMES, SCHEMA, from_dict, read_result, to_dict, write_result
from kcg.types import (
    Kernel,
    ModelCheck,
    Outlook,
    ProgressPoint,
    Region,
    RegionResult,
    Result,
    Schedule,
    ScheduleKind,
    SearchedRegion,
    Verification,
)
from tests.sample_result import sample_plan, sample_result

UNPRIVILEGED = 65534  # nobody


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "RESULT.json"
    write_result(sample_result(), path)
    return path


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A folder that may not be written, also where the tests run as root."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(UNPRIVILEGED)
    try:
        yield folder
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("seed",), 1 << 63, r"seed: the number is too large"),
        (("measurements",), 1 << 2000, r"measurements: the number is too large"),
        (("regions", 0, "calls"), 1 << 64, r"calls: the number is too large"),
        (("target", "bandwidth_bytes_s"), "inf", r"target.bandwidth_bytes_s: the number is no size and no rate"),
        (("target", "cores"), -1, r"target.cores: the number is no size and no rate"),
    ],
    ids=lambda value: str(value)[:20].encode("ascii", "replace").decode(),
)
def test_what_no_result_holds_is_refused(stored: Path, path: tuple[Any, ...], value: object, says: str) -> None:
    document = place = json.loads(stored.read_text())
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    stored.write_text(json.dumps(document))
    with pytest.raises(ResultError, match=says) as caught:
        read_result(stored)
    assert "\n" not in str(caught.value) and str(caught.value).isascii()


BY_HAND = SourceBody("mine", "cuda", "CUDA", "mine", 'x < 1 && "q" </script> µ', (8, 2), (32,), 1024)


def test_round_trip_is_exact(stored: Path) -> None:
    assert read_result(stored) == sample_result()
    assert from_dict(json.loads(json.dumps(to_dict(sample_result())))) == sample_result()


def test_every_float_and_text_survives(tmp_path: Path) -> None:
    sample = sample_result()
    first = replace(sample.regions[0], operations=0.1 + 0.2, bytes=5e-324, note='\ud800 \x00 \u2028 " \\ 漢')
    wrong = replace(sample.regions[1].baseline, verification=Verification(False, ("poison",), math.inf, 1, "NaN"))
    second = replace(sample.regions[1], baseline=wrong, chosen=wrong, outcome="quarantined")
    third = replace(sample.regions[2].chosen, schedule=source_schedule(BY_HAND))
    result = replace(
        sample,
        regions=(first, second, replace(sample.regions[2], chosen=third)),
        expectations=tuple(replace(e, region=i % 3, corrected_s=0.1) for i, e in enumerate(sample.expectations)),
        search_s=1e308,
        target=replace(sample.target, power_limit_w=None, clock_limit_mhz=None),
        complete=False,
    )
    write_result(result, tmp_path / "r.json")
    assert read_result(tmp_path / "r.json") == result


def test_times_that_are_not_numbers_survive(tmp_path: Path) -> None:
    sample = sample_result()
    unmeasured = replace(sample.regions[0].baseline, cold_s=math.nan, warm_s=math.nan, interval_s=(-0.0, math.inf))
    row = replace(sample.regions[0], baseline=unmeasured, chosen=unmeasured, outcome="quarantined")
    write_result(replace(sample, regions=(row,), expectations=()), tmp_path / "r.json")
    back = read_result(tmp_path / "r.json").regions[0].baseline
    assert math.isnan(back.cold_s) and math.isnan(back.warm_s) and back.interval_s == (0.0, math.inf)


def test_region_of_several_wired_kernels_survives(tmp_path: Path) -> None:
    sample = sample_result()
    region = Region((Kernel("[1]"), Kernel("[2]"), Kernel("[1]")), ((0, 1), (2, 0), (3, 0, 2)), (3,))
    parts = Schedule(ScheduleKind.PARTS, '[[[0],"opts","[]"],[[1],"opts","[]"],[[2],"opts","[]"]]')
    chosen = replace(sample.regions[0].chosen, schedule=parts, launch=((), ()))
    row = replace(sample.regions[0], region=region, baseline=replace(chosen, name="3 kernels: a; b; a"), chosen=chosen)
    result = replace(sample, regions=(row,), expectations=())
    write_result(result, tmp_path / "r.json")
    assert read_result(tmp_path / "r.json") == result
    assert len(to_dict(result)["asts"]) == 2


def test_empty_result_survives(tmp_path: Path) -> None:
    result = replace(sample_result(), regions=(), expectations=(), progress=(), recomputes=(), warnings=())
    write_result(result, tmp_path / "new" / "folder" / "r.json")
    assert read_result(tmp_path / "new" / "folder" / "r.json") == result


def test_what_json_mode_prints(stored: Path) -> None:
    sample = sample_result()
    document = json.loads(stored.read_text())
    assert document["schema"] == SCHEMA
    assert document["total_before_s"] == sample.total_before_s
    assert document["total_after_s"] == sample.total_after_s
    assert (document["measurements"], document["search_s"]) == (504, 312.418)
    assert document["target"]["model"] == "NVIDIA H200"
    for entry, row in zip(document["kernels"], sample.regions, strict=True):
        assert entry["id"] == row.region.id and entry["calls"] == row.calls
        assert entry["name"] == row.chosen.name
        assert (entry["before_s"], entry["after_s"]) == (row.before_s, row.after_s)
        assert entry["schedule"] == {"kind": row.chosen.schedule.kind, "body": row.chosen.schedule.body}
        assert entry["verified"] is row.chosen.verification.passed
        assert document["asts"][entry["id"]] == row.region.kernel.ast_json


@pytest.mark.parametrize("tenths", range(10))
def test_truncated_file_is_refused(stored: Path, tenths: int) -> None:
    data = stored.read_bytes()
    stored.write_bytes(data[: len(data) * tenths // 10])
    refuse(stored, "truncated")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\xff\x93NUMPY",
        b"null",
        b"[]",
        b"3",
        b'{"a": 1}',
        b"[" * 200_000,
        b'{"schema": 1}',
        b'{"schema": NaN}',
        b'{"schema": %d, "regions": []}' % (SCHEMA + 1),
        b'{"schema": true}',
        b'{"schema": 1, "schema": 1}',
        b"9" * 5000,
    ],
)
def test_foreign_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "r.json").write_bytes(data)
    refuse(tmp_path / "r.json", "is (not a result|truncated or not JSON)")


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    refuse(tmp_path / "none.json", "there is no .*none.json: give the RESULT.json of a run")
    refuse(tmp_path, "is a folder: give the file of a run, such as .*/RESULT.json")


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of each value below `value`, only the first two of a list."""
    if path:
        yield path
    items: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value[:2]))
    for key, inner in items:
        yield from leaves(inner, (*path, key))


def changed(document: Any, path: tuple[str | int, ...], value: Any) -> Any:
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[path[0]] = value if len(path) == 1 else changed(copy[path[0]], path[1:], value)
    return copy


def test_every_field_is_type_checked() -> None:
    document = json.loads(json.dumps(to_dict(sample_result())))
    paths = list(leaves(document))
    assert len(paths) > 200
    kinds = ([[[]]], {"x": 1}, "☃", 1.5, True)
    for place, path in enumerate(paths):
        value = document
        for key in path:
            value = value[key]
        fits = (1.5,) if isinstance(value, int | float) else (True,) if path == ("dirty",) else ()
        others = [w for w in kinds if type(value) is not type(w) and not any(w is fit for fit in fits)]
        for wrong in (others[place % len(others)], others[(place + 1) % len(others)]):
            with pytest.raises(ResultError) as caught:
                from_dict(changed(document, path, wrong))
            assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def added_after(version: int) -> set[str]:
    """The names of fields that files of a version lack."""
    return {name for later, added in ADDED.items() if later > version for _, name in added}


def without(value: Any, names: set[str]) -> Any:
    """A document without the fields of those names, at any depth. Regions had `wiring` before they had `args`."""
    if isinstance(value, dict):
        left = {k: without(v, names) for k, v in value.items() if k not in names}
        return {**left, "wiring": []} if "args" in value and "args" in names else left
    return [without(v, names) for v in value] if isinstance(value, list) else value


def without_origins(result: Result) -> Result:
    """As before it was known where kernels come from."""

    def before(rows: tuple[RegionResult, ...]) -> tuple[RegionResult, ...]:
        return tuple(replace(row, origins=()) for row in rows)

    planning = result.planning
    if planning is not None:
        planning = replace(planning, inside=before(planning.inside))
    return replace(result, regions=before(result.regions), planning=planning)


def without_unjudged(result: Result) -> Result:
    """As before verifications said it."""

    def before(row: RegionResult) -> RegionResult:
        base = replace(row.baseline, verification=replace(row.baseline.verification, unjudged=False))
        return replace(row, baseline=base, chosen=base) if row.baseline.verification.unjudged else row

    return replace(result, regions=tuple(before(row) for row in result.regions))


def test_what_older_files_call_quarantined_or_kept_is_read_as_unjudged_or_not_searched() -> None:
    why = "most outputs are not numbers (seed 1)"
    sample = without_unjudged(without_origins(sample_result()))
    wrong = next(row for row in sample.regions if row.outcome == "quarantined")
    verification = Verification(False, reason=f"the kernel cannot be judged: {why}")
    base = replace(wrong.baseline, verification=verification)
    old = replace(wrong, baseline=base, chosen=base, note=verification.reason)
    idle = replace(sample.regions[0], outcome="kept", note="not searched: too little to save")
    older = replace(sample, regions=(old, wrong, idle), expectations=())
    document = without({**to_dict(older), "schema": 7}, added_after(7))
    unjudged, quarantined, idle = from_dict(document).regions
    assert (unjudged.outcome, unjudged.note) == ("unjudged", why)
    assert unjudged.chosen.verification == unjudged.baseline.verification
    assert (unjudged.chosen.verification.unjudged, unjudged.chosen.verification.wrong) == (True, False)
    assert quarantined == wrong and quarantined.chosen.verification.wrong
    assert (idle.outcome, idle.note) == ("not searched", "too little to save")


def without_ends() -> tuple[RegionResult, ...]:
    """The regions of the sample as they were before a kernel with symbolic variables was one row with two ends."""
    return tuple(replace(row, ends=()) for row in without_origins(sample_result()).regions)


def test_files_of_the_first_version_are_read() -> None:
    target = replace(sample_result().target, bandwidth_bytes_s=None)
    first = replace(
        sample_result(),
        model_check=None,
        predictor="",
        target=target,
        expectations=(),
        clocks=(),
        phases=(),
        regions=without_ends(),
    )
    document = {**to_dict(first), "schema": 1}
    with pytest.raises(ResultError, match="'allow_tf32' is unknown"):
        from_dict(document)
    document = without(document, {name for added in ADDED.values() for _, name in added})
    assert from_dict(document) == without_unjudged(first)
    with pytest.raises(ResultError, match="'model_check' is missing"):
        from_dict({**document, "schema": 2})


def test_regions_of_the_eighth_version_had_wiring_of_one_kernel() -> None:
    sample = without_origins(sample_result())
    document = without({**to_dict(sample), "schema": 8}, added_after(8))
    assert document["regions"][0]["region"].keys() == {"kernels", "wiring"}
    assert from_dict(document) == sample
    with pytest.raises(ResultError, match="wiring: an empty list is expected"):
        from_dict(changed(document, ("regions", 0, "region", "wiring"), [[0, 0, 1, 0]]))


def test_files_of_the_third_version_have_no_expectations() -> None:
    check = ModelCheck(True, "", 0.0031, 0.043, before_s=0.07, after_s=0.04)
    third = replace(sample_result(), expectations=(), clocks=(), phases=(), model_check=check, regions=without_ends())
    document = without({**to_dict(third), "schema": 3}, added_after(3))
    assert from_dict(document) == without_unjudged(third)
    assert check.clock == "wall clock, the fastest of three", "as steps were timed then"
    with pytest.raises(ResultError, match="is missing"):
        from_dict({**document, "schema": 4})


@pytest.mark.parametrize(
    "check",
    [
        ModelCheck(
            False, "the output differs by 0.3", 0.3, 1e-4, seed=1, kernels=2, before_s=0.1, after_s=0.2, clock="sun"
        ),
        ModelCheck(False, "the output is not finite", math.inf, None),
        ModelCheck(
            True,
            error=0.0,
            tolerance=1e-4,
            clocks_before=(("sm_mhz_min", 1590.0),),
            clocks_after=(("power_w", 640.5), ("sm_mhz_max", 1980.0)),
        ),
        ModelCheck(None, "not run: the workload is a script"),
    ],
)
def test_every_result_on_the_model_survives(tmp_path: Path, check: ModelCheck) -> None:
    result = replace(sample_result(), model_check=check)
    write_result(result, tmp_path / "r.json")
    assert read_result(tmp_path / "r.json") == result


def test_missing_and_unknown_fields_are_refused() -> None:
    document = to_dict(sample_result())
    for name in document:
        with pytest.raises(ResultError):
            from_dict({k: v for k, v in document.items() if k != name})
    with pytest.raises(ResultError, match="'extra' is unknown"):
        from_dict({**document, "extra": 1})
    region = {k: v for k, v in document["regions"][0].items() if k != "calls"}
    with pytest.raises(ResultError, match=r"regions\[0\].*'calls' is missing"):
        from_dict({**document, "regions": [region]})


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("total_after_s",), 1e-9, "total_after_s: it contradicts"),
        (("kernels", 0, "verified"), False, "kernels: it contradicts"),
        (("regions", 0, "calls"), -1, "negative"),
        (("regions", 0, "chosen", "cold_s"), -1e-6, "negative"),
        (("regions", 0, "chosen", "cold_s"), 10**400, "too large"),
        (("regions", 0, "outcome"), "great", "none of improved, kept, undecided, not searched, unj"),
        (("regions", 0, "region", "kernels"), [], "no kernels"),
        (("regions", 0, "region", "kernels"), ["00"], "no kernel '00'"),
        (("regions", 0, "region", "args"), [[0, 1]], "one kernel has no args"),
        (("regions", 0, "region", "outputs"), [0], "one kernel has no args and no outputs"),
        (("regions", 0, "chosen", "schedule", "kind"), "magic", "unknown kind"),
        (("regions", 0, "chosen", "schedule", "body"), "[", "not JSON"),
        (("regions", 0, "chosen", "schedule", "body"), '[["UPCAST",0,"x"]]', "not a list of"),
        (("regions", 1, "ends", 0, "before_s"), -1e-6, "ends: a share or a time is negative"),
        (("regions", 1, "ends", 0, "share"), 0.5, "ends: they are not two whose shares sum to 1"),
        (("regions", 1, "ends", 0, "variables"), [["pos", 1]], "ends: they name different variables"),
        (("created",), "yesterday", "not an ISO date"),
        (("model_check", "error"), None, "it passed without an error"),
        (("model_check", "tolerance"), None, "it passed without an error"),
        (("phases", 0, 1), -0.5, "negative"),
        (("expectations", 0, "region"), 16, "lacks"),
        (("expectations", 0, "region"), -1, "lacks"),
        (("expectations", 0, "predicted_s"), -1e-6, "negative"),
        (("expectations", 0, "schedule", "body"), "[", "not JSON"),
    ],
)
def test_values_that_cannot_be_are_refused(path: tuple[str | int, ...], value: Any, message: str) -> None:
    with pytest.raises(ResultError, match=message):
        from_dict(changed(to_dict(sample_result()), path, value))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("regions", 0, "region"), "00", r"regions\[0\].region: it names no region of several"),
        (("regions", 0, "kernels"), ["a"], r"regions\[0\]: it contradicts the regions"),
        (("regions", 0, "calls"), 3, r"regions\[0\]: it contradicts the regions"),
        (("regions", 0, "saved_bytes"), -1.0, "a size or a count is negative"),
        (("regions", 1, "left", 0, 1), -1, "a size or a count is negative"),
        (("regions",), [], "plans: the chosen one is not that of the regions"),
        (("plans", 0, "chosen"), False, "plans: the chosen one is not that of the regions"),
        (("plans", 1, "chosen"), True, "plans: the chosen one is not that of the regions"),
        (("plans", 1, "step_s"), -1.0, "plans: a time is negative"),
        (("passed_over", 0, 1), -1, "passed_over: a count is negative"),
        (("inside", 0, "calls"), 1, r"inside\[0\]: it is no kernel, or one that runs by itself"),
        (("inside", 0, "chosen", "cold_s"), -1e-6, r"inside\[0\].chosen: a time is negative"),
        (("inside", 0, "chosen", "schedule", "body"), "[", r"inside\[0\].chosen.schedule: .*JSON"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(path: tuple[str | int, ...], value: Any, message: str) -> None:
    with pytest.raises(ResultError, match=rf"planning.*{message}"):
        from_dict(changed(to_dict(sample_plan()), ("planning", *path), value))


def test_a_plan_survives_and_counts_each_kernel_once(tmp_path: Path) -> None:
    result, alone = sample_plan(), sample_result()
    write_result(result, tmp_path / "r.json")
    assert read_result(tmp_path / "r.json") == result and result.planning is not None
    ran = sum(row.calls * len(row.region.kernels) for row in result.regions)
    assert ran == sum(row.calls for row in alone.regions)
    assert result.total_before_s == pytest.approx(alone.total_before_s), "tinygrad's own schedules of all kernels"
    saved_s = sum(one.calls * one.saved_s for one in result.planning.regions)
    assert result.total_after_s == pytest.approx(alone.total_after_s - saved_s)
    assert not sum(row.before_s for row in result.planning.inside)
    document = to_dict(result)
    assert {row.region.id for row in result.planning.inside} <= document["asts"].keys()
    negative = changed(document, ("model_check", "left", 0, 2), -1)
    with pytest.raises(ResultError, match="model_check: a count is negative"):
        from_dict(negative)


def test_files_of_the_tenth_version_have_no_plan() -> None:
    sample = without_origins(sample_result())
    document = without({**to_dict(sample), "schema": 10}, added_after(10))
    assert from_dict(document) == sample
    with pytest.raises(ResultError, match="'planning' is unknown"):
        from_dict({**without(to_dict(sample_plan()), {"allow_tf32", "dropped", "outlook"}), "schema": 10})


def test_files_of_the_eleventh_version_have_no_savings_among_neighbours_and_compute_nothing_again() -> None:
    result = without_origins(sample_plan())
    assert result.planning is not None
    document = without({**to_dict(result), "schema": 11}, added_after(11))
    bare = tuple(replace(one, nearby_s=None) for one in result.planning.regions)
    assert from_dict(document) == replace(result, planning=replace(result.planning, regions=bare))
    assert {one.nearby_s is None for one in result.planning.regions} == {True, False}, "the sample has both"
    timed = next(i for i, one in enumerate(result.planning.regions) if one.nearby_s is not None)
    turned = changed(to_dict(result), ("planning", "regions", timed, "nearby_s"), [2.0, 1.0, 3.0])
    with pytest.raises(ResultError, match="nearby_s: it is no interval"):
        from_dict(turned)
    with pytest.raises(ResultError, match="is missing"):
        from_dict({**document, "schema": 12})


def test_files_of_the_twelfth_version_have_no_origins() -> None:
    result = sample_plan()
    assert any(row.origins for row in result.regions)
    assert from_dict(to_dict(result)) == result
    document = without({**to_dict(result), "schema": 12}, added_after(12))
    assert from_dict(document) == without_origins(result)
    none = changed(to_dict(result), ("regions", 0, "origins"), [["flux.py:1", 0]])
    with pytest.raises(ResultError, match=r"regions\[0\].origins: a count is not positive"):
        from_dict(none)


def test_files_of_the_fifteenth_version_are_of_a_generator_without_a_version() -> None:
    before = sample_plan()
    result = replace(before, toolchain=replace(before.toolchain, generator=1))
    assert from_dict(to_dict(result)) == result
    document = without({**to_dict(result), "schema": 15}, added_after(15))
    assert from_dict(document) == before


def test_files_of_the_sixteenth_version_say_nothing_of_what_more_time_would_bring() -> None:
    before = sample_plan()
    result = replace(before, outlook=Outlook(2, 1e-3, 1, 5e-4))
    assert from_dict(to_dict(result)) == result
    assert from_dict(without({**to_dict(result), "schema": 16}, added_after(16))) == before
    for field, value in (("unjudged_s", "nan"), ("searches", -1)):
        with pytest.raises(ResultError, match="outlook: a count or a time is negative, or no number"):
            from_dict(changed(to_dict(result), ("outlook", field), value))


def test_files_of_the_sixteenth_version_say_nothing_of_launches() -> None:
    before = sample_plan()
    first, *others = before.regions
    some = replace(first, chosen=replace(first.chosen, launches=1000, launches_due=10_000))
    result = replace(before, regions=(some, *others))
    assert from_dict(to_dict(result)) == result and result.provisional == (some,)
    assert to_dict(result)["kernels"][0]["provisional"] and "provisional" not in to_dict(before)["kernels"][0]
    document = without({**to_dict(before), "schema": 16}, added_after(16))
    assert from_dict(document) == before and not before.provisional
    with pytest.raises(ResultError, match="is missing"):
        from_dict({**document, "schema": 18})
    more = changed(to_dict(result), ("regions", 0, "chosen", "launches"), 20_000)
    with pytest.raises(ResultError, match="passed more launches than it has to"):
        from_dict(more)


def test_files_of_the_eighteenth_version_expect_nothing_of_kernels_that_regions_run() -> None:
    """No field came with the nineteenth: the place of what was expected may be behind the last region."""
    plan, one = sample_plan(), sample_result().expectations[0]
    inside = replace(plan, expectations=(one, replace(one, region=len(plan.regions))))
    assert from_dict(to_dict(inside)) == inside and inside.planning is not None
    assert inside.with_inside[len(plan.regions)] == inside.planning.inside[0]
    old = replace(inside, expectations=(one,))
    assert from_dict(without({**to_dict(old), "schema": 18}, added_after(18))) == old
    with pytest.raises(ResultError, match="names a region that the result lacks"):
        from_dict(without({**to_dict(inside), "schema": 18}, added_after(18)))
    beyond = replace(one, region=len(inside.with_inside))
    with pytest.raises(ResultError, match="names a region that the result lacks"):
        from_dict(to_dict(replace(plan, expectations=(beyond,))))


def test_files_of_the_nineteenth_version_have_no_regions_beside_the_plan() -> None:
    plan, one = sample_plan(), sample_result().expectations[0]
    assert plan.planning is not None
    beside = SearchedRegion("a region", ("r_8", "E_4"))
    result = replace(
        plan,
        planning=replace(plan.planning, searched=(beside,)),
        expectations=(replace(one, region=len(plan.with_inside)),),
    )
    assert from_dict(to_dict(result)) == result and result.searched == (beside,)
    assert from_dict(without({**to_dict(plan), "schema": 19}, added_after(19))) == plan
    with pytest.raises(ResultError, match="names a region that the result lacks"):
        from_dict(without({**to_dict(result), "schema": 19}, added_after(19)))
    for wrong in (replace(beside, kernels=("r_8",)), replace(beside, region=plan.planning.regions[0].region)):
        with pytest.raises(ResultError, match="no region of several kernels, or one of the plan"):
            from_dict(to_dict(replace(plan, planning=replace(plan.planning, searched=(wrong,)))))


def test_files_of_the_twentieth_version_do_not_say_how_often_a_step_was_replayed() -> None:
    check = ModelCheck(True, "", 0.0031, 0.043)
    before = replace(sample_plan(), model_check=check)
    result = replace(before, model_check=replace(check, steady=212, unsteady="it differs"))
    assert from_dict(to_dict(result)) == result
    assert from_dict(without({**to_dict(result), "schema": 20}, added_after(20))) == before
    with pytest.raises(ResultError, match="a count is negative"):
        from_dict(to_dict(replace(result, model_check=replace(check, steady=-1))))


def test_files_of_the_seventeenth_version_do_not_say_when_what_was_verified() -> None:
    before = sample_plan()
    result = replace(before, verified_progress=(ProgressPoint(3.5, 12, 2e-3), ProgressPoint(9.0, 40, 1e-3)))
    assert from_dict(to_dict(result)) == result
    assert from_dict(without({**to_dict(result), "schema": 17}, added_after(17))) == before


def test_what_is_computed_again_survives_and_agrees() -> None:
    plan = sample_plan()
    assert plan.planning is not None
    first, *regions = plan.planning.regions
    place = next(i for i, row in enumerate(plan.regions) if row.region.id == first.region)
    row = plan.regions[place]
    rows = list(plan.regions)
    rows[place] = replace(row, region=replace(row.region, again=(0,)), again_s=0.25 * row.baseline.cold_s)
    marked = (replace(first, again=(0,), saved_bytes=-1.0), *regions)
    planning = replace(plan.planning, regions=marked, unread=(("E_4", 3),))
    result = replace(plan, regions=tuple(rows), planning=planning)
    document = to_dict(result)
    assert from_dict(document) == result and from_dict(document).regions[place].region.again == (0,)
    assert plan.total_before_s - result.total_before_s == pytest.approx(0.25 * row.before_s)
    for path, value, message in (
        (("regions", place, "region", "again"), [7], "what is made again must be some of the kernels"),
        (("regions", place, "again_s"), 2 * row.baseline.cold_s, "again_s: it is no part of the baseline's time"),
        (("planning", "regions", 0, "again"), [], "again: it contradicts the regions"),
        (("planning", "unread", 0, 1), -1, "unread: a count is negative"),
    ):
        with pytest.raises(ResultError, match=message):
            from_dict(changed(document, path, value))


def test_a_sum_that_another_python_rounded_is_accepted() -> None:
    result = sample_result()
    document = to_dict(result)
    assert from_dict({**document, "total_after_s": math.nextafter(document["total_after_s"], 1.0)}) == result


def test_changed_kernel_is_noticed(stored: Path) -> None:
    document = json.loads(stored.read_text())
    name = next(iter(document["asts"]))
    document["asts"][name] = document["asts"][name].replace("SINK", "SINC")
    stored.write_text(json.dumps(document))
    refuse(stored, "the text of the kernel was changed")


def refuse(path: Path, message: str) -> None:
    with pytest.raises(ResultError, match=message) as caught:
        read_result(path)
    text = str(caught.value)
    assert "\n" not in text and text.isprintable()
    assert "run" in text, "it says what to do"
    assert caught.value.exit_code == ExitCode.USAGE


def test_older_file_stays_whole_when_writing_fails(stored: Path) -> None:
    before = stored.read_bytes()
    row = sample_result().regions[0]
    impossible = replace(row, calls="many")  # type: ignore[arg-type]
    with pytest.raises((TypeError, ValueError)):
        write_result(replace(sample_result(), regions=(impossible,)), stored)
    assert stored.read_bytes() == before
    assert [p.name for p in stored.parent.iterdir()] == ["RESULT.json"]


def test_read_only_folder_is_one_line(read_only: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write .*: Permission denied: choose a folder") as caught:
        write_result(sample_result(), read_only / "RESULT.json")
    assert "\n" not in str(caught.value)


def test_folder_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        write_result(sample_result(), tmp_path / "file" / "RESULT.json")
    with pytest.raises(UsageError, match="cannot write"):
        write_result(sample_result(), tmp_path)
    assert [p.name for p in tmp_path.parent.iterdir() if p.name.endswith(".tmp")] == []


def test_sample_is_what_the_other_tests_need() -> None:
    sample: Result = sample_result()
    assert len(sample.regions) >= 15
    assert {r.outcome for r in sample.regions} == set(OUTCOMES)
    assert sample.total_after_s < sample.total_before_s


def test_a_device_without_an_end_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_of_a_run, "MAX_BYTES", 1 << 20)
    with pytest.raises(ResultError, match="/dev/zero is larger than 1 MiB and no result"):
        read_result(Path("/dev/zero"))
