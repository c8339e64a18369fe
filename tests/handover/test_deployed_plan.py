"""A plan in running programs: its regions where that is safe, and elsewhere the best of each kernel alone."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tinygrad import Tensor, TinyJit

from kcg.compat.partition import LIVE, USED
from kcg.handover import remaking
from kcg.handover.apply import apply
from kcg.handover.choices import changed_by, choices
from kcg.handover.export import export, module_text
from kcg.handover.installing import plain_program
from kcg.handover.tuned import putting_in_place, scheduling
from kcg.judge.step import compare
from kcg.judge.whole_script import Script
from kcg.kernel.composed import parts_of
from kcg.kernel.kinds import compile_region
from kcg.kernel.program import Program
from kcg.kernel.regions import candidates_of
from kcg.kernel.tile.parameters import TileParameters
from kcg.report.counts import share_of
from kcg.report.result import read_result, write_result
from kcg.types import Region, Result, Schedule, ScheduleKind, Workload
from kcg.workloads import script
from tests.commands import folders_of, printed, python
from tests.planned_result import SCRIPT, norm_workload, planned_result
from tests.tiny_models import TINY
from tests.without_clang import stand_in

Numbers = list[np.ndarray]


@pytest.fixture(scope="module")
def captured() -> tuple[Workload, Region]:
    return norm_workload()


@pytest.fixture(scope="module")
def norm(captured: tuple[Workload, Region]) -> Region:
    return captured[1]


@pytest.fixture(scope="module")
def result(captured: tuple[Workload, Region]) -> Result:
    """Every kernel has another schedule than tinygrad's own, in the norm yet another one."""
    return planned_result(*captured)


@pytest.fixture
def stored(result: Result, tmp_path: Path) -> Path:
    write_result(result, tmp_path / "RESULT.json")
    return tmp_path / "RESULT.json"


def inside(result: Result) -> dict[str, Schedule]:
    assert result.planning is not None
    return {row.region.id: row.chosen.schedule for row in result.planning.inside}


def test_a_kernel_within_a_region_has_its_own_best(result: Result, norm: Region) -> None:
    assert set(inside(result)) == {kernel.id for kernel in norm.kernels}
    assert not set(inside(result)) & {row.region.id for row in result.regions}
    chosen, skipped = choices(result)
    assert skipped == 1 and all(choice.searched for choice in chosen)
    by_id = {choice.kernel.id: choice.schedule for choice in chosen}
    assert inside(result).items() <= by_id.items()
    (row,) = [row for row in result.regions if row.region == norm]
    assert all(by_id[k.id] != p.schedule for k, p in zip(norm.kernels, parts_of(row.chosen.schedule), strict=True))


def test_what_has_to_run_in_a_check_is_the_regions(result: Result, norm: Region) -> None:
    assert norm.id in changed_by(result, handwritten=False)
    assert not changed_by(result, handwritten=False) & set(inside(result))


def test_beams_cache_holds_every_kernel_alone_and_an_exported_module_regions_too(
    result: Result, stored: Path, tmp_path: Path
) -> None:
    facts = (result.target, result.toolchain)
    applied = apply(stored, widths=(2,), cache_db=tmp_path / "cache.db", facts=facts)
    kernels = {kernel for row in result.regions for kernel in row.region.kernels}
    assert applied.kernels == applied.searched == len(kernels) and applied.still_searched == 0
    assert any(
        note.startswith("1 region of several kernels cannot be served by BEAM's cache") for note in applied.notes
    )
    exported = export(stored, tmp_path / "tuned_model.py")
    assert exported.kernels == exported.searched == len(kernels)
    assert (exported.regions, exported.fused, exported.programs) == (1, 0, 0) and not exported.notes
    words = "1 region of several kernels, where they fit: 0 as machine code, 1 with Opts for their kernels"
    assert words in str(exported).splitlines()


# ---- programs in which a region does not fit everywhere, or nowhere


def given(rows: int = 64) -> Tensor:
    made = [[float((7 * i + 3 * j) % 23) / 23 for j in range(256)] for i in range(rows)]
    return Tensor(made).contiguous().realize()


def hidden_of(x: Tensor) -> Tensor:
    return (x * 2 + 1).contiguous()


def as_searched(x: Tensor) -> Numbers:
    """As the script that was captured."""
    step = TinyJit(lambda x: hidden_of(x).layernorm().contiguous().realize())
    return [step((x + 0).contiguous().realize()).numpy() for _ in range(4)]


def reads_later(x: Tensor) -> Numbers:
    """Another call of the step reads the mean."""

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = hidden_of(x)
        made = hidden.layernorm().contiguous(), (hidden.mean(axis=-1, keepdim=True) * 3).contiguous()
        Tensor.realize(*made)
        return made

    step = TinyJit(run)
    return [t.numpy() for _ in range(4) for t in step((x + 0).contiguous().realize())]


def reads_in_another_capture(x: Tensor) -> Numbers:
    """The mean is alive after the step, and what reads it is captured by itself."""

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = hidden_of(x)
        made = hidden.layernorm().contiguous(), hidden.mean(axis=-1, keepdim=True)
        Tensor.realize(*made)
        return made

    step, other = TinyJit(run), TinyJit(lambda mean: (mean * 3).contiguous().realize())
    found = []
    for _ in range(4):
        out, mean = step((x + 0).contiguous().realize())
        found += [out.numpy(), other(mean).numpy()]
    return found


def reads_by_a_view(x: Tensor) -> Numbers:
    """Of the mean nothing but a view of a part is alive."""
    found = []
    for _ in range(2):
        hidden = hidden_of(x)
        mean = hidden.mean(axis=-1, keepdim=True)
        out, part = hidden.layernorm().contiguous(), mean.reshape(8, 8)[2:5]
        del mean
        Tensor.realize(out, part)
        found += [out.numpy(), (part + 0).numpy()]
    return found


def changes_shape(x: Tensor) -> Numbers:
    """Steps of another number of rows between those that were captured."""
    found = []
    for rows in (64, 48, 64, 48):
        found += [hidden_of(given(rows)).layernorm().contiguous().numpy()]
    return found


def changed_since(x: Tensor) -> Numbers:
    """The model divides by another sum now, so the norm is another region, of which some kernels are the same."""
    hidden = hidden_of(x)
    centred = hidden - hidden.mean(axis=-1, keepdim=True)
    return [(centred / (centred.abs().mean(axis=-1, keepdim=True) + 1)).contiguous().numpy()]


PROGRAMS = [
    (as_searched, True, ""),
    (reads_later, False, USED),
    (reads_in_another_capture, False, LIVE),
    (reads_by_a_view, False, LIVE),
    (changes_shape, True, ""),
    (changed_since, False, ""),
]


@pytest.mark.parametrize(("program", "fits", "reason"), PROGRAMS)
def test_a_region_is_put_in_where_it_is_safe_and_nothing_changes(
    program: Callable[[Tensor], Numbers], fits: bool, reason: str, result: Result, norm: Region
) -> None:
    x = given()
    wanted = program(x)
    with scheduling(result) as place:
        found = program(x)
    for ours, own in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, own, rtol=1e-5, atol=1e-5)
    assert bool(place.replaced.counts[norm.id]) == fits == (norm.id in place.served)
    assert {why for region, why, _ in place.sets_left if region == norm.id} == ({reason} if reason else set())
    asked = place.served & set(inside(result))
    assert bool(asked) == (not fits), "where it is not put in its kernels have the best of each alone"


EXPORTED = """
import importlib, json, sys
import numpy as np
from tinygrad import Tensor, TinyJit
from tinygrad.codegen import to_program_cache
Numbers = list
{functions}
x, report = given(), {{}}
plain = [program(x) for program in ({names})]
import tuned_model
importlib.reload(tuned_model)
for program, wanted in zip(({names}), plain):
    to_program_cache.clear()
    before = tuned_model.installed[-1].counts
    found = program(x)
    report[program.__name__] = {{
        "counts": dict(tuned_model.installed[-1].counts - before),
        "error": max(float(abs(ours - own).max()) for ours, own in zip(found, wanted)),
        "opts": [[[o.op.name, o.axis, o.arg] for o in p.src[0].arg.applied_opts] for p in to_program_cache.values()],
    }}
assert not [name for name in sys.modules if name.split(".")[0] in ("kcg", "triton")]
assert tuned_model.installed[0].counts.keys().isdisjoint(
    key for key in tuned_model.installed[1].counts if key.endswith("replaced")
), "imported twice, it is put in once"
tuned_model.uninstall()
to_program_cache.clear()
assert max(float(abs(ours - own).max()) for ours, own in zip(as_searched(x), plain[0])) == 0
print(json.dumps(report))
"""


@pytest.mark.parametrize(
    "is_compiled", [pytest.param(False, marks=pytest.mark.slow, id="Opts"), pytest.param(True, id="machine code")]
)
def test_an_exported_module_does_what_kcg_does_in_a_process_without_it(
    is_compiled: bool, result: Result, norm: Region, stored: Path, tmp_path: Path
) -> None:
    """Eagerly and replayed, with values that are alive or read elsewhere, with other shapes, and imported twice."""
    export(stored, tmp_path / "tuned_model.py")
    if is_compiled:
        program = compile_region(norm, parts_schedule(result, norm), result.target)
        assert isinstance(program, Program)
        instead = {norm: plain_program(norm, program, aligned=True)}
        (tmp_path / "tuned_model.py").write_text(module_text(result, choices(result)[0], instead))
    programs = [program for program, _, _ in PROGRAMS]
    functions = "\n".join(inspect.getsource(one) for one in (given, hidden_of, *programs))
    code = EXPORTED.format(functions=functions, names=", ".join(one.__name__ for one in programs))
    (tmp_path / "code.py").write_text(code)
    settings = {"PYTHONPATH": folders_of("tinygrad", "numpy"), "DEV": "CPU:X86", **stand_in(tmp_path)}
    done = python(tmp_path / "code.py", CACHEDB=str(tmp_path / "cache.db"), PARALLEL="0", **settings)
    assert done.returncode == 0, done.stderr
    report, name = json.loads(done.stdout), norm.id[:12]
    own = [json.loads(schedule.body) for schedule in inside(result).values()]
    for program, fits, reason in PROGRAMS:
        seen = report[program.__name__]
        with scheduling(result) as place:
            program(given())
        counts = {f"{name} replaced": place.replaced.counts[norm.id]} if fits else {}
        counts |= {f"{name} left: {why}": count for (_, why), count in place.replaced.left.items()}
        assert seen["counts"] == counts and seen["error"] < 1e-5, program.__name__
        assert {key.partition(": ")[2] for key in counts if "left" in key} == ({reason} if reason else set())
        if not fits and program is not changed_since:  # some kernels of which are others
            assert all(opts in seen["opts"] for opts in own), "each has the best that it has alone"


@pytest.mark.slow
def test_a_program_is_told_why_a_region_is_not_put_in(stored: Path, result: Result, tmp_path: Path) -> None:
    text = SCRIPT.read_text().replace(
        "return (hidden.layernorm().contiguous() * scale).contiguous().realize()",
        "global mean; mean = hidden.mean(axis=-1, keepdim=True)\n"
        "    out = (hidden.layernorm().contiguous() * scale).contiguous()\n"
        "    Tensor.realize(out, mean)\n"
        "    return out",
    )
    (tmp_path / "model.py").write_text(text)
    reporter = SCRIPT.with_name("report_opts.py")
    done = python("-m", "kcg.run", "--result", stored, reporter, tmp_path / "model.py", DEV="CPU:X86")
    assert done.returncode == 0, done.stderr
    said, report = done.stdout.splitlines()
    assert said == printed(tmp_path / "model.py").strip()
    (row,) = [row for row in result.regions if row.region.args]
    assert f"{row.baseline.name}: 2 calls left without its program: {LIVE}" in done.stderr, "eagerly, and captured"
    assert "not served" not in done.stderr, "it was asked for"
    opts = json.loads(report)["opts"]
    assert all(json.loads(schedule.body) in opts for schedule in inside(result).values())


@pytest.mark.slow
def test_a_program_that_changed_since_is_told_that_it_does_not_ask_for_a_region(
    stored: Path, result: Result, tmp_path: Path
) -> None:
    other = "((hidden - hidden.mean(axis=-1, keepdim=True)) / (hidden.abs().mean(axis=-1, keepdim=True) + 1))"
    (tmp_path / "model.py").write_text(SCRIPT.read_text().replace("hidden.layernorm()", other))
    done = python("-m", "kcg.run", "--result", stored, tmp_path / "model.py", DEV="CPU:X86")
    assert done.returncode == 0 and done.stdout == printed(tmp_path / "model.py"), done.stderr
    (row,) = [row for row in result.regions if row.region.args]
    (line,) = [line for line in done.stderr.splitlines() if "not served" in line]
    assert row.baseline.name in line and "the program did not ask for them" in line
    assert "0 by compiled programs" in done.stderr and "left without" not in done.stderr


def test_where_a_tile_program_cannot_be_made_each_kernel_has_its_best(result: Result, norm: Region) -> None:
    """Here there are none for the target."""
    tile = Schedule(ScheduleKind.TILE, TileParameters("rows", ((0,),), (16,), reduce_tile=128).to_json())
    rows = [replace(r, chosen=replace(r.chosen, schedule=tile)) if r.region == norm else r for r in result.regions]
    lines: list[str] = []
    x = given()
    wanted = as_searched(x)
    with putting_in_place(replace(result, regions=tuple(rows)), lines.append) as place:
        found = as_searched(x)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert set(inside(result)) < place.served and norm.id not in place.served
    (line,) = lines
    assert line.startswith("3 kernels: ") and ": each kernel alone instead of a tile program: tile programs are" in line


def test_a_program_that_cannot_be_exported_is_named(
    result: Result, norm: Region, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here one that does not write what its region does."""
    program = compile_region(norm, parts_schedule(result, norm), result.target)
    assert isinstance(program, Program)
    remade = remaking.Remade({norm.id: replace(program, launches=program.launches[:2])}, {})
    monkeypatch.setattr(remaking, "remade", lambda result, to_run: remade)
    write_result(result, tmp_path / "RESULT.json")
    exported = export(tmp_path / "RESULT.json", tmp_path / "tuned_model.py")
    (note,) = exported.notes
    (row,) = [row for row in result.regions if row.region == norm]
    assert note.startswith(f"1 program left out, with each kernel alone instead ({row.baseline.name}): tinygrad")
    assert "does not write the outputs" in note and exported.regions == 0


def parts_schedule(result: Result, norm: Region) -> Schedule:
    (row,) = [row for row in result.regions if row.region == norm]
    return row.baseline.schedule


@pytest.mark.slow
def test_a_program_that_has_it_is_told_nothing_of_its_kernels(stored: Path, result: Result) -> None:
    """By default: what is put in where is tested above, and what `kcg run` says of kernels in test_run."""
    done = python("-m", "kcg.run", "--result", stored, SCRIPT, DEV="CPU:X86")
    assert done.returncode == 0, done.stderr
    regions = [row.region for row in result.regions]
    assert " and 1 of 1 region" in share_of(regions, regions)
    assert f"{share_of(regions, regions)} served: 1 by compiled programs" in done.stderr
    assert "not served" not in done.stderr and "left without" not in done.stderr


def test_a_program_of_one_kernel_leaves_the_calls_of_regions_alone(
    result: Result, norm: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where tile programs are best for a kernel and for a region that has it; here both are tinygrad's own."""

    def tiled(row):  # type: ignore[no-untyped-def]
        return replace(row, chosen=replace(row.chosen, schedule=Schedule(ScheduleKind.TILE, "{}")))

    assert result.planning is not None
    kernels = tuple(tiled(replace(row, opts=row.chosen)) for row in result.planning.inside)
    rows = tuple(tiled(row) if row.region == norm else row for row in result.regions)
    both = replace(result, regions=(*kernels, *rows), planning=None)  # as where they run alone elsewhere too

    def made(region: Region, schedule: Schedule) -> Program:
        program = compile_region(region, schedule, result.target)
        if isinstance(program, Program):
            return program
        from kcg.kernel.program import program_of_parts

        return program_of_parts(region, [program])

    programs = {row.region.id: made(row.region, row.baseline.schedule) for row in (*kernels, *rows)}
    changed = {norm.id, *(row.region.id for row in kernels)}
    remade = remaking.Remade({name: one for name, one in programs.items() if name in changed}, {})
    monkeypatch.setattr(remaking, "remade", lambda result: remade)
    x = given()
    wanted = as_searched(x)
    with scheduling(both) as place:
        found = as_searched(x)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert dict(place.sets_replaced) == {norm.id: 2}, "eagerly, and captured"
    with scheduling(both) as place:
        reads_later(x)
    assert norm.id not in place.served and set(dict(place.sets_replaced)) == {row.region.id for row in kernels}


@pytest.mark.slow
def test_the_check_of_a_script_says_where_regions_were_put_in(result: Result, norm: Region) -> None:
    (check,) = Script(script.Program(script.Form.SCRIPT, str(SCRIPT))).checks([result], timeout_s=240.0)
    assert check.passed and check.kernels == len(result.regions), check
    assert dict(check.replaced) == {norm.id: 2} and not check.left, "eagerly, and captured"


@pytest.mark.slow
def test_the_check_of_a_script_in_which_nothing_but_a_region_changed(result: Result, norm: Region) -> None:
    """What comes out of it is compared, though no kernel has another schedule."""
    rows = tuple(r if r.region == norm else replace(r, chosen=r.baseline, outcome="kept") for r in result.regions)
    (check,) = Script(script.Program(script.Form.SCRIPT, str(SCRIPT))).checks(
        [replace(result, regions=rows)], timeout_s=240.0
    )
    assert check.passed and check.kernels == 1 and "tensor" in check.compared, check


def test_the_check_of_a_model_says_where_regions_were_put_in() -> None:
    workload = TINY.capture("float")
    (sequence,) = workload.sequences
    region = next(c.region for c in candidates_of(sequence) if not c.again)
    result = planned_result(workload, region)
    (check,) = compare(TINY.runnable("float", 3), [result], seed=3)  # type: ignore[misc]
    calls = {row.region.id: row.calls for row in result.regions}
    assert check.passed and dict(check.replaced) == {region.id: calls[region.id]} and not check.left, check


def test_it_is_stored_and_read(stored: Path, result: Result) -> None:
    assert read_result(stored) == result
