"""A result reaches plain tinygrad: unchanged programs take its schedules, and everything can be taken back."""

from __future__ import annotations

import json
import os
import pickle
import runpy
import sqlite3
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kcg.compat import standalone
from kcg.compat.beam import cache_key
from kcg.compat.device import has_cuda, prepare
from kcg.compat.opened import open_default
from kcg.compat.renderers import planning_renderer
from kcg.errors import MismatchError, ResultError, UsageError
from kcg.handover.apply import apply, undo
from kcg.handover.cache_rows import undo_path
from kcg.handover.choices import choices
from kcg.handover.tuned import tuned
from kcg.kernel.codec import ast_of
from kcg.kernel.kinds import ACTION_SPACE_VERSION
from kcg.kernel.opts.space import KernelSpace
from kcg.measure.device_info import detect
from kcg.optimize.run import seen_as_of
from kcg.report.result import write_result
from kcg.types import Region, RegionResult, Result, Schedule, Target, Toolchain, Verification
from kcg.workloads.script import program_of
from tests.beam_cache import put, rows_of
from tests.captured import recorded
from tests.commands import printed, python
from tests.sample_result import sample_result
from tests.small_result import finalist, small_result
from tests.without_clang import HIDE, stand_in

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parents[1] / "scripts"
Facts = tuple[Target, Toolchain]


def listed(schedule: Schedule) -> list[Any]:
    """A schedule as the scripts report it."""
    return json.loads(schedule.body)


@pytest.fixture(scope="module")
def facts() -> Facts:
    prepare("CPU:X86")
    return detect("CPU:X86", ACTION_SPACE_VERSION)


@pytest.fixture(scope="module")
def result(facts: Facts) -> Result:
    """The kernels of the small model: all with a schedule chosen by hand, but the last, which keeps its baseline."""
    return small_result(*facts)


@pytest.fixture
def stored(result: Result, tmp_path: Path) -> Path:
    write_result(result, tmp_path / "RESULT.json")
    return tmp_path / "RESULT.json"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "cache.db"


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a script in a process of its own, as a user would."""

    def start(*command: object, cache: Path | None = None, **settings: str) -> subprocess.CompletedProcess[str]:
        return python(*command, CACHEDB=str(cache or tmp_path / "own.db"), **settings)

    return start


@pytest.fixture
def stand_in_compiler(tmp_path: Path) -> dict[str, str]:
    return stand_in(tmp_path)


def key_of(region: Region, width: int, target: Target) -> tuple[Any, ...]:
    key = cache_key(ast_of(region.kernel), width, target.device, planning_renderer(target))
    return (key["ast"], width, 1, key["device"], key["suffix"])


# ---- taking the schedules ----


@pytest.mark.slow
def test_an_unchanged_program_with_beam_takes_the_schedules_without_a_search(
    result: Result, stored: Path, cache: Path, facts: Facts, run: Any, stand_in_compiler: dict[str, str]
) -> None:
    settings = {"cache": cache, "DEV": "CPU:X86", "BEAM": "2", **stand_in_compiler}
    command = (SCRIPTS / "report_opts.py", SCRIPTS / "small_model.py")
    searching = run(*command, "--stop-at-candidate", **settings)
    assert "BEAM compiles 1" in searching.stderr, "without kcg the program would search"

    applied = apply(stored, widths=(2,), cache_db=cache, facts=facts)
    done = run(*command, **settings)
    assert done.returncode == 0, done.stderr
    value, report = done.stdout.splitlines()
    report = json.loads(report)
    assert report["compiled"] == 0
    expected = [listed(row.chosen.schedule) for row in result.regions]
    assert sorted(report["opts"], key=str) == sorted(expected, key=str)
    assert float(value) == pytest.approx(float(printed(SCRIPTS / "small_model.py")), rel=1e-5)
    assert applied.searched == len(result.regions) - 1 and applied.kernels == len(result.regions)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "unserved"),
    [("hand_written", 1), ("sharded", 0), pytest.param("two_devices", 1, marks=pytest.mark.slow)],
    ids=lambda value: str(value),
)
def test_beam_searches_as_many_kernels_of_a_captured_program_as_apply_says(
    script: str, unserved: int, tmp_path: Path, cache: Path, facts: Facts, run: Any, stand_in_compiler: dict[str, str]
) -> None:
    path = SCRIPTS / f"{script}.py"
    workload, _ = recorded(program_of([str(path)]), "CPU:X86")
    regions = []
    for call in workload.calls:
        space = KernelSpace(call.region, facts[0])
        chosen = finalist(space, unlike_baseline_or_it(space))
        regions.append(RegionResult(call.region, call.calls, finalist(space, space.baseline()), chosen, 1, "improved"))
    written = replace(
        sample_result(),
        target=facts[0],
        toolchain=facts[1],
        regions=tuple(regions),
        recomputes=(),
        expectations=(),
        left_out=workload.left_out,
        seen_as=seen_as_of(workload, facts[0].device),
    )
    write_result(written, tmp_path / "RESULT.json")
    applied = apply(tmp_path / "RESULT.json", widths=(2,), cache_db=cache, facts=facts)
    count = {0: "none", 1: "1 kernel"}[unserved]
    assert f"BEAM=2 will still search {count} of the kernels that the program ran" in str(applied)
    assert sum(note.startswith("BEAM still searches: ") for note in applied.notes) == unserved

    settings = {"cache": cache, "DEV": "CPU:X86", "BEAM": "2", "PARALLEL": "0", **stand_in_compiler}
    done = run(SCRIPTS / "report_opts.py", path, **settings)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["searched"] == applied.still_searched == unserved
    if unserved == 0:
        undo(cache)
        again = run(SCRIPTS / "report_opts.py", path, "--stop-at-candidate", **settings)
        assert "BEAM compiles 1" in again.stderr, "without the rows it would search them"


def unlike_baseline_or_it(space: KernelSpace) -> Schedule:
    other = (step.schedule for step in space.actions(space.start()))
    return next((found for found in other if space.key(found) != space.key(space.baseline())), space.baseline())


def test_the_rows_are_those_that_tinygrad_writes(result: Result, stored: Path, cache: Path, facts: Facts) -> None:
    applied = apply(stored, widths=(2, 7, 2), cache_db=cache, facts=facts)
    rows = rows_of(cache)
    assert applied.widths == (2, 7) and applied.rows == len(rows) == 2 * len(result.regions)
    for row in result.regions:
        for width in applied.widths:
            opts = pickle.loads(rows[key_of(row.region, width, facts[0])])  # written by this very test
            assert type(opts) is list
            assert [[o.op.name, o.axis, o.arg] for o in opts] == listed(row.chosen.schedule)


def test_the_table_is_made_as_tinygrad_makes_it(tmp_path: Path, run: Any) -> None:
    put(tmp_path / "kcg.db", {})
    source = (
        "from tinygrad.helpers import diskcache_put\n"
        "diskcache_put('beam_search', {'ast': b'', 'amt': 2, 'allow_test_size': True, 'device': '', 'suffix': ''}, [])"
    )
    assert run("-c", source, cache=tmp_path / "tiny.db").returncode == 0
    statements = []
    for name in ("kcg.db", "tiny.db"):
        database = sqlite3.connect(tmp_path / name)
        statements.append(database.execute("SELECT sql FROM sqlite_master WHERE type='table'").fetchall())
        database.close()
    assert statements[0] == statements[1]


def test_what_is_not_verified_gets_the_baseline(result: Result, facts: Facts) -> None:
    first = result.regions[0]
    for chosen in (
        replace(first.chosen, verification=Verification(False)),
        replace(first.chosen, schedule=Schedule("source", '"__kernel"')),
    ):
        (choice,), _ = choices(replace(result, regions=(replace(first, chosen=chosen),)))
        assert choice.schedule == first.baseline.schedule and not choice.searched


def test_what_is_unjudged_or_only_checked_gets_the_baseline(
    result: Result, stored: Path, cache: Path, facts: Facts
) -> None:
    *improved, last = result.regions
    for outcome, unjudged in (("unjudged", True), ("not searched", False)):
        base = replace(last.baseline, verification=Verification(False, seeds=1, unjudged=unjudged))
        changed = replace(result, regions=(*improved, replace(last, baseline=base, chosen=base, outcome=outcome)))
        *_, choice = choices(changed)[0]
        assert not choice.searched and choice.schedule == last.baseline.schedule
        write_result(changed, stored)
        printed = str(apply(stored, widths=(2,), cache_db=cache, facts=facts))
        assert ("note: kernels that are unjudged have tinygrad's own schedule: 1" in printed) == unjudged
        assert "had not verified" not in printed


def test_of_one_kernel_with_several_values_the_costlier_decides(result: Result) -> None:
    first = result.regions[0]
    small = replace(first, variables=(("n", 1),), chosen=first.baseline)
    large = replace(first, variables=(("n", 9),), calls=first.calls + 1)
    for regions in ((small, large), (large, small)):
        (choice,), _ = choices(replace(result, regions=regions))
        assert choice.schedule == first.chosen.schedule


def test_regions_of_several_kernels_are_left_out_and_reported(
    result: Result, tmp_path: Path, cache: Path, facts: Facts
) -> None:
    first, second, *rest = result.regions
    fused = replace(first, region=Region((first.region.kernel, second.region.kernel), ((0, 1), (2, 0)), (2,)))
    write_result(replace(result, regions=(fused, second, *rest)), tmp_path / "RESULT.json")
    applied = apply(tmp_path / "RESULT.json", widths=(2,), cache_db=cache, facts=facts)
    assert applied.kernels == len(result.regions) - 1
    assert any(note.startswith("1 region of several kernels") for note in applied.notes)


def test_the_summary_says_how_to_use_and_how_to_undo(stored: Path, cache: Path, facts: Facts) -> None:
    applied = apply(stored, widths=(4,), cache_db=cache, facts=facts)
    compiler = f"CC={applied.clang} " if applied.clang else ""  # where only that of a wheel is there
    assert f"use:  CACHEDB={cache} {compiler}DEV=CPU:X86 BEAM=4 python your_program.py" in str(applied)
    assert str(applied).endswith(f"undo: kcg apply --undo --cachedb {cache}")
    assert replace(applied, own_cache=True).undo_command == "kcg apply --undo"


def test_without_clang_nothing_is_printed_that_plain_tinygrad_could_not_start(
    stored: Path, cache: Path, facts: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its BEAM cache could be used, and its CPU does not open: kcg opens it."""
    monkeypatch.setattr("kcg.handover.apply.missing_clang", lambda target: "")
    applied = apply(stored, widths=(4,), cache_db=cache, facts=facts)
    assert f"use:  kcg run --result {stored} your_program.py" in str(applied)
    assert "python your_program.py" not in str(applied)


@pytest.mark.slow
def test_by_default_the_device_is_read_and_the_cache_is_tinygrads_own(stored: Path, cache: Path, run: Any) -> None:
    done = run("-m", "kcg.optimize", "apply", stored, "--beam", "3", cache=cache, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert f"in {cache} (0 held another schedule)" in done.stdout
    assert {key[1] for key in rows_of(cache)} == {3}
    done = run("-m", "kcg.optimize", "apply", "--undo", cache=cache, PYTHONPATH=str(ROOT))
    assert done.returncode == 0 and not rows_of(cache)


# ---- undoing ----


def test_undo_gives_back_every_byte(result: Result, stored: Path, cache: Path, facts: Facts) -> None:
    ours = key_of(result.regions[0].region, 2, facts[0])
    before = {ours: b"\x00\xff any bytes \x80", (b"other", 2, 1, "CPU", ""): b"", (b"more", 9, 0, "X", "PTX"): b"\n"}
    put(cache, before)
    assert apply(stored, widths=(2, 4), cache_db=cache, facts=facts).replaced == 1
    assert rows_of(cache) != before
    undone = undo(cache)
    assert rows_of(cache) == before
    assert (undone.restored, undone.removed, undone.left_alone) == (1, 2 * len(result.regions) - 1, 0)
    assert not undo_path(cache).exists()


def test_a_second_undo_says_that_there_is_nothing(stored: Path, cache: Path, facts: Facts) -> None:
    apply(stored, widths=(2,), cache_db=cache, facts=facts)
    undo(cache)
    with pytest.raises(UsageError, match="nothing to undo") as caught:
        undo(cache)
    assert "\n" not in str(caught.value)


def test_a_second_apply_keeps_what_was_before_the_first(
    result: Result, stored: Path, tmp_path: Path, cache: Path, facts: Facts
) -> None:
    before = {key_of(result.regions[0].region, 2, facts[0]): b"the user's own"}
    put(cache, before)
    apply(stored, widths=(2,), cache_db=cache, facts=facts)
    first, *others = result.regions
    write_result(replace(result, regions=(replace(first, chosen=first.baseline), *others)), tmp_path / "other.json")
    apply(tmp_path / "other.json", widths=(2, 3), cache_db=cache, facts=facts)
    assert undo(cache).left_alone == 0
    assert rows_of(cache) == before


def test_where_nothing_was_found_beam_is_left_to_search(
    result: Result, tmp_path: Path, cache: Path, facts: Facts
) -> None:
    nothing = tuple(replace(r, chosen=r.baseline) for r in result.regions)
    write_result(replace(result, regions=nothing), tmp_path / "nothing.json")
    with pytest.raises(UsageError, match=r"nothing\.json has no schedule that was found and verified"):
        apply(tmp_path / "nothing.json", widths=(2,), cache_db=cache, facts=facts)
    assert not cache.exists() and not undo_path(cache).exists()


def test_rows_that_others_changed_since_are_left_alone(result: Result, stored: Path, cache: Path, facts: Facts) -> None:
    keys = [key_of(row.region, 2, facts[0]) for row in result.regions]
    put(cache, {keys[0]: b"old"})
    apply(stored, widths=(2,), cache_db=cache, facts=facts)
    put(cache, {keys[0]: b"new", keys[1]: b"also new"})
    undone = undo(cache)
    assert undone.left_alone == 2 and "2 left alone" in str(undone)
    assert rows_of(cache) == {keys[0]: b"new", keys[1]: b"also new"}


def test_undo_of_a_cache_that_was_deleted(stored: Path, result: Result, cache: Path, facts: Facts) -> None:
    apply(stored, widths=(2,), cache_db=cache, facts=facts)
    cache.unlink()
    assert undo(cache).left_alone == len(result.regions)
    assert not cache.exists() and not undo_path(cache).exists()


# ---- refusing ----


def assert_refused(error: type[Exception], match: str, result_path: Path, cache: Path, facts: Facts | None) -> None:
    with pytest.raises(error, match=match) as caught:
        apply(result_path, widths=(2,), cache_db=cache, facts=facts)
    assert "\n" not in str(caught.value)
    assert not cache.exists() and not undo_path(cache).exists()


def test_another_tinygrad_is_refused(stored: Path, cache: Path, facts: Facts) -> None:
    here = (facts[0], replace(facts[1], tinygrad="0.15.0"))
    assert_refused(MismatchError, "tinygrad: .*'0.14.0'.*'0.15.0'.*install", stored, cache, here)


def test_other_hardware_is_refused_by_the_first_field_that_differs(stored: Path, cache: Path, facts: Facts) -> None:
    here = (replace(facts[0], model="another CPU", cores=1000), facts[1])
    assert_refused(MismatchError, "^model: .*'another CPU': run the search on this machine", stored, cache, here)


def test_another_device_is_refused_before_anything_is_started(result: Result, tmp_path: Path, cache: Path) -> None:
    write_result(replace(result, target=sample_result().target), tmp_path / "RESULT.json")
    if has_cuda():
        pytest.skip("this machine has an NVIDIA GPU")
    assert_refused(MismatchError, "device: .*NVIDIA H200", tmp_path / "RESULT.json", cache, None)


def test_another_compiler_is_reported_but_not_refused(stored: Path, cache: Path, facts: Facts) -> None:
    applied = apply(stored, widths=(2,), cache_db=cache, facts=(facts[0], replace(facts[1], driver="999")))
    assert any(note.startswith("the driver was ''") for note in applied.notes)


def test_a_truncated_result_is_refused(stored: Path, cache: Path, facts: Facts) -> None:
    stored.write_bytes(stored.read_bytes()[:-100])
    assert_refused(ResultError, "truncated", stored, cache, facts)


def test_a_schedule_that_does_not_apply_is_refused(result: Result, tmp_path: Path, cache: Path, facts: Facts) -> None:
    first = result.regions[0]
    for body in ('[["UPCAST",7,4]]', '[["NONSENSE",0,4]]', '[["TC",0,[-1,2,1]]]', '[["UPCAST",0,[1,2]]]'):
        chosen = replace(first.chosen, schedule=Schedule("opts", body))
        write_result(replace(result, regions=(replace(first, chosen=chosen),)), tmp_path / "RESULT.json")
        assert_refused(ResultError, "does not apply", tmp_path / "RESULT.json", cache, facts)


@pytest.mark.parametrize("widths", [(), (0,), (2, -1)])
def test_impossible_widths_are_refused(widths: tuple[int, ...], stored: Path, cache: Path, facts: Facts) -> None:
    with pytest.raises(UsageError, match="beam width"):
        apply(stored, widths=widths, cache_db=cache, facts=facts)


# ---- inside one process ----


@pytest.mark.slow
def test_tuned_gives_the_schedules_to_plain_and_jitted_programs_and_ends_with_its_block(
    result: Result, stored: Path, run: Any
) -> None:
    settings = {"PYTHONPATH": f"{ROOT}{os.pathsep}{SCRIPTS}", "DEV": "CPU:X86", "BEAM": "0"}
    done = run(SCRIPTS / "tuned_model.py", stored, **settings)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    chosen, own = ([listed(getattr(r, n).schedule) for r in result.regions] for n in ("chosen", "baseline"))
    assert sorted(report["plain"], key=str) == sorted(chosen, key=str)
    assert sorted(report["jit"], key=str) == sorted(chosen, key=str)
    assert sorted(report["after"], key=str) == sorted(own, key=str) != sorted(chosen, key=str)
    assert report["restored"]
    assert report["error"] < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("dev", ["", pytest.param("CPU", marks=pytest.mark.slow)])
def test_tuned_opens_the_cpu_without_clang_and_goes_before_beam(
    dev: str, stored: Path, tmp_path: Path, run: Any
) -> None:
    if not dev and has_cuda():
        pytest.skip("the default device of this machine is a GPU")
    settings = {"BEAM": "2", "PATH": str(tmp_path), "CC": "", "DEV": dev}
    settings["PYTHONPATH"] = f"{ROOT}{os.pathsep}{SCRIPTS}"
    body = (
        "import sys, kcg; from tinygrad.codegen.opt import search; from small_model import output\n"
        "search.beam_search = None\n"
        "with kcg.tuned(sys.argv[1]): output().realize()"
    )
    done = run("-c", HIDE + body, stored, **settings)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("tinygrad", lambda r: replace(r, toolchain=replace(r.toolchain, tinygrad="0.13.0"))),
        ("model", lambda r: replace(r, target=replace(r.target, model="another CPU"))),
        ("renderer", lambda r: replace(r, target=replace(r.target, renderer="CLANG"))),
    ],
)
def test_tuned_refuses_what_was_made_elsewhere(field: str, change: Any, result: Result, tmp_path: Path) -> None:
    write_result(change(result), tmp_path / "RESULT.json")
    with pytest.raises(MismatchError, match=f"^{field}: "), tuned(tmp_path / "RESULT.json"):
        raise AssertionError("the block must not run")


def test_tuned_leaves_another_model_beside_the_default_device_to_tinygrad(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = standalone.opened_device

    def opened(name: str) -> standalone.Opened:
        return replace(look(name), model="another") if name == "CPU:1" else look(name)

    monkeypatch.setattr(standalone, "opened_device", opened)
    model = runpy.run_path(str(SCRIPTS / "small_model.py"))
    a, b = (model["table"](*shape).to("CPU:1").realize() for shape in ((32, 48), (48, 64)))
    warned = pytest.warns(UserWarning, match=r"^CPU:1: its kernels are left to tinygrad: model: made for ")
    with warned as caught, tuned(stored):
        model["normalised"]((a @ b).relu()).realize()
        assert not caught.list
    assert len(caught.list) == 1 and caught[0].filename == __file__


def test_the_cheap_look_at_the_device_agrees_with_the_full_one(facts: Facts) -> None:
    opened = open_default()
    for name in ("device", "renderer", "arch", "model", "max_threads"):
        assert getattr(opened, name) == getattr(facts[0], name)


def test_importing_kcg_loads_nothing_heavy(run: Any) -> None:
    body = "import sys, kcg; print([m for m in ('tinygrad', 'numpy', 'kcg.optimize') if m in sys.modules]); kcg.tuned"
    done = run("-c", body, PYTHONPATH=str(ROOT))
    assert done.stdout == "[]\n", done.stderr
    import kcg

    with pytest.raises(AttributeError, match="no attribute 'untuned'"):
        _ = kcg.untuned
