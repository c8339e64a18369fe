"""Tile programs of a result for a running program: made again in a child, kept, and given up for Opts where that is
not what was verified."""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tinygrad import Tensor

import kcg
from kcg.compat.assembler import assembler
from kcg.compat.device import prepare
from kcg.errors import MismatchError
from kcg.handover.apply import apply
from kcg.handover.choices import choices
from kcg.handover.export import export
from kcg.handover.installing import plain_program
from kcg.handover.remaking import why_not_here
from kcg.kernel.codec import kernel_of
from kcg.kernel.kinds import ACTION_SPACE_VERSION, space_of
from kcg.kernel.opts.space import KernelSpace
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.kernel import read_kernel
from kcg.kernel.tile.compile import compile_tile
from kcg.kernel.tile.parameters import POINTER, TileParameters
from kcg.kernel.tile.prior import default_parameters
from kcg.kernel.tile.space import schedule_of
from kcg.kernel.tile.targets import triton_version
from kcg.measure.device_info import detect
from kcg.report.result import write_result
from kcg.types import Finalist, Region, RegionResult, Result, Target, Toolchain, Verification
from tests.chains import region_of
from tests.commands import folders_of, python
from tests.fake_triton import fake_triton
from tests.kernel.tile.running import HAS_TRITON, WITHOUT
from tests.kernels import empty, kernels_of
from tests.known_targets import KNOWN_TARGETS
from tests.sample_result import sample_result
from tests.small_result import SCRIPTS, finalist, small_result

SM_90 = KNOWN_TARGETS["sm_90"]
WITHOUT_KCG = folders_of("tinygrad", "numpy")
triton = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)

REMADE = """
import json, sys
from pathlib import Path
from kcg.handover import remaking
from kcg.report.result import read_result
if sys.argv[2:]:
    remaking.isolated.run_isolated = None
made = remaking.remade(read_result(Path(sys.argv[1])))
hashes = {region: program.binary_hash for region, program in made.programs.items()}
print(json.dumps({"made": hashes, "failed": made.failed, "triton": "triton" in sys.modules}))
"""


@cache
def linear(rows: int, device: str = "CPU") -> Region:
    """A projection with its bias."""
    x, weight = (empty(n, 256, dtype="bfloat16", device=device) for n in (rows, 384))
    return Region((kernel_of(kernels_of(x @ weight.T + empty(384, dtype="bfloat16", device=device))[-1]),))


def tile_row(region: Region, target: Target, p: TileParameters | None = None, *, binary_hash: str = "") -> RegionResult:
    """As if a tile program had won against the best Opts, which had won against tinygrad's own."""
    space = KernelSpace(region, target)
    own, best = finalist(space, space.baseline()), finalist(space, space.actions(space.start())[0].schedule)
    p = p or default_parameters(read_kernel(region), target)
    won = Finalist(schedule_of(p), 1e-6, 1e-6, (1e-6, 1e-6), Verification(True), binary_hash=binary_hash, name="tile")
    return RegionResult(region, 1, own, won, 3, "improved", opts=best)


@cache
def softmax(rows: int, device: str = "CPU") -> Region:
    """The calls of a softmax of what `linear` stores."""
    return region_of(empty(rows, 384, dtype="bfloat16", device=device).softmax(-1).contiguous())


def fused_row(region: Region, target: Target, *, binary_hash: str = "") -> RegionResult:
    """As if the program that the prior chooses for a region of several kernels had won against its parts."""
    space = space_of(region, target)
    own = Finalist(space.baseline(), 3e-6, 3e-6, (3e-6, 3e-6), Verification(True), name=space.name(space.baseline()))
    schedule = schedule_of(default_parameters(read_region(region), target))
    won = Finalist(schedule, 1e-6, 1e-6, (1e-6, 1e-6), Verification(True), binary_hash=binary_hash, name="fused")
    return RegionResult(region, 1, own, won, 3, "improved", opts=own)


def verified(row: RegionResult, target: Target) -> RegionResult:
    """With the hash of its program, as after it was compiled and verified."""
    made = compile_tile(row.region, row.chosen.schedule, target)
    return replace(row, chosen=replace(row.chosen, binary_hash=made.binary_hash))


def result_of(*rows: RegionResult, target: Target = SM_90, toolchain: Toolchain | None = None) -> Result:
    using = assembler()
    made_with = replace(
        sample_result().toolchain,
        driver="",
        triton=triton_version() or "9.9.9",
        assembler=using.name if using else "ptxas 13.9.1",
    )
    return replace(
        sample_result(), target=target, toolchain=toolchain or made_with, regions=rows, recomputes=(), expectations=()
    )


def remade(result: Result, folder: Path, *arguments: str, **settings: str) -> Mapping[str, Any]:
    """What a fresh process with a cache of its own makes of them."""
    write_result(result, folder / "RESULT.json")
    settings = {"XDG_CACHE_HOME": str(folder / "cache"), **settings}
    done = python("-c", REMADE, folder / "RESULT.json", *arguments, **settings)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@triton
def test_they_are_made_in_a_child_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "here"))
    row = verified(tile_row(linear(256), SM_90), SM_90)
    other = tile_row(linear(128), SM_90, binary_hash="another")
    first = remade(result_of(row, other), tmp_path)
    assert first["made"] == {row.region.id: row.chosen.binary_hash} and not first["triton"]
    assert first["failed"] == {
        other.region.id: "its parameters give another program here than the one that was verified: run the search again"
    }
    again = remade(result_of(row, other), tmp_path, "without a child")
    assert again == first


@pytest.mark.slow
@triton
def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "here"))
    (tmp_path / "cache").write_text("no folder")
    row = verified(tile_row(linear(256), SM_90), SM_90)
    assert set(remade(result_of(row), tmp_path)["made"]) == {linear(256).id}


@pytest.mark.slow
def test_a_compiler_that_aborts_costs_its_own_program_only(tmp_path: Path) -> None:
    toolchain = replace(sample_result().toolchain, driver="", triton="9.9.9", assembler="ptxas 13.9.1")
    rows = [tile_row(linear(256), SM_90), tile_row(linear(512), SM_90)]
    impossible = tile_row(
        linear(128), SM_90, replace(default_parameters(read_kernel(linear(128)), SM_90), tile=(96, 96))
    )
    result = result_of(*rows, impossible, toolchain=toolchain)
    made = remade(result, tmp_path, **fake_triton(tmp_path))
    assert made["made"] == {} and not made["triton"]
    assert [made["failed"][row.region.id] for row in rows] == ["it does not compile: its process died of SIGABRT"] * 2
    assert "SIGABRT" not in made["failed"][impossible.region.id], "it was not even given to the compiler"


@triton
@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"driver": "1.2.3"}, "driver: they were verified with '1.2.3', here it is "),
        ({"triton": "0.0.1"}, "Triton: they were verified with '0.0.1', here it is "),
        ({"assembler": "ptxas 12.8.93"}, "assembler: they were verified with 'ptxas 12.8.93', here it is "),
    ],
)
def test_another_toolchain_is_named(change: dict[str, str], line: str) -> None:
    result = result_of(tile_row(linear(256), SM_90))
    assert why_not_here(result) == ""
    other = replace(result, toolchain=replace(result.toolchain, **change))
    assert why_not_here(other).startswith(line)
    assert not (change.keys() & {"driver"} and why_not_here(other, to_run=False)), "the module looks itself"


@pytest.mark.slow
@triton
def test_an_exported_module_holds_their_machine_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    row = tile_row(linear(256), SM_90)
    program = compile_tile(row.region, row.chosen.schedule, SM_90)
    whole = softmax(256)
    rows = [
        replace(row, chosen=replace(row.chosen, binary_hash=program.binary_hash)),
        tile_row(linear(512), SM_90, binary_hash="another"),
        tile_row(linear(128), SM_90),  # nobody knows what was verified
        verified(fused_row(whole, SM_90), SM_90),
        fused_row(softmax(512), SM_90, binary_hash="another"),
    ]
    write_result(result_of(*rows), tmp_path / "RESULT.json")
    written = str(export(tmp_path / "RESULT.json", tmp_path / "tuned_model.py"))
    assert "3 kernels: 1 as machine code, 2 with Opts that were found, 0 with tinygrad's own" in written
    assert "1 region of several kernels, where they fit: 1 as machine code, 0 with Opts for their kernels" in written
    words = f"1 tile program left out, with each kernel alone instead ({rows[4].baseline.name}): its parameters"
    assert f"note: {words} give another program here" in written
    for row, why in zip(rows[1:3], ("its parameters give another", "the result does not say which"), strict=True):
        words = f"1 tile program left out, with the best Opts instead ({row.baseline.name}): {why}"
        assert f"note: {words}" in written
    text = (tmp_path / "tuned_model.py").read_text()
    (tmp_path / "not_installed.py").write_text(text.removesuffix("install(FOUND)\n"))
    monkeypatch.syspath_prepend(tmp_path)
    found = importlib.import_module("not_installed").FOUND
    ((fused, instead), (where, made)) = found.regions
    assert (fused.id, fused.args, fused.outputs) == (whole.id, whole.args, whole.outputs) and len(fused.kernels) > 1
    wanted = plain_program(whole, compile_tile(whole, rows[3].chosen.schedule, SM_90), aligned=True)
    assert repr(instead) == repr(replace(wanted, launches=tuple(replace(one, source="") for one in wanted.launches)))
    assert (where.id,) == tuple(kernel.id for kernel in where.kernels) and where.id in found.opts
    wanted = plain_program(rows[0].region, program, aligned=True)
    assert [launch.code for launch in made.launches] == [launch.compiled.binary for launch in program.launches]
    assert repr(replace(made, launches=())) == repr(replace(wanted, launches=()))
    for one, other in zip(made.launches, wanted.launches, strict=True):
        assert repr(one) == repr(replace(other, source=""))
    assert len(found.opts) == 3 and found.opened.model == SM_90.model, "Opts for calls that are no program's"


# ---- where they cannot be used, the best Opts are


@pytest.fixture(scope="module")
def on_cpu() -> Result:
    """A result of a CPU whose first kernel a tile program won: a target that Triton does not know."""
    prepare("CPU:X86")
    target, toolchain = detect("CPU:X86", ACTION_SPACE_VERSION)
    result = small_result(target, toolchain)
    first, *rest = result.regions
    tile = tile_row(linear(256), SM_90).chosen
    return replace(result, regions=(replace(first, chosen=tile, opts=first.chosen), *rest))


def test_the_best_opts_stand_beside_a_tile_program(on_cpu: Result) -> None:
    first = on_cpu.regions[0]
    choice = next(c for c in choices(on_cpu)[0] if c.kernel == first.region.kernel)
    assert first.opts is not None and choice.schedule == first.opts.schedule and choice.searched
    assert choice.program == first.baseline.name


def test_apply_says_which_kernels_that_concerns(on_cpu: Result, tmp_path: Path) -> None:
    write_result(on_cpu, tmp_path / "RESULT.json")
    facts = (on_cpu.target, on_cpu.toolchain)
    applied = apply(tmp_path / "RESULT.json", widths=(2,), cache_db=tmp_path / "cache.db", facts=facts)
    (note,) = [note for note in applied.notes if "tile program" in note]
    name = on_cpu.regions[0].baseline.name
    assert note.startswith(f"1 kernel is faster as tile programs and takes the best Opts here ({name}): kcg.tuned, ")


@pytest.mark.slow
def test_tuned_warns_in_a_line_and_takes_the_opts(on_cpu: Result, tmp_path: Path) -> None:
    write_result(on_cpu, tmp_path / "RESULT.json")
    name = on_cpu.regions[0].baseline.name
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with kcg.tuned(tmp_path / "RESULT.json"):
            Tensor.ones(4).contiguous().realize()
    (line,) = [str(one.message) for one in caught if "tile program" in str(one.message)]
    assert line.startswith(
        f"{name}: the best Opts instead of a tile program: tile programs are for NVIDIA GPUs from sm"
    )
    assert "\n" not in line
    done = python("-m", "kcg.run", "--result", tmp_path / "RESULT.json", "-m", "small_model", cwd=SCRIPTS)
    assert done.returncode == 0 and f"kcg: {line}" in done.stderr and "2 by schedules that were found" in done.stderr


def test_on_another_device_the_result_is_refused_with_the_reason(on_cpu: Result, tmp_path: Path) -> None:
    other = replace(on_cpu, target=replace(on_cpu.target, model="another CPU"))
    write_result(other, tmp_path / "RESULT.json")
    refused = pytest.raises(MismatchError, match=r"^model: the result was made for 'another CPU'")
    with refused, kcg.tuned(tmp_path / "RESULT.json"):
        raise AssertionError("not reached")


# ---- on a GPU

MODEL = """
import json, sys
import numpy as np
from tinygrad import Tensor, TinyJit, dtypes
def given(seed, *shape):
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return (Tensor(values) / 16).cast(dtypes.bfloat16).contiguous().realize()
weight, bias = given(1, 384, 256), given(2, 384)
def model(x): return (x @ weight.T + bias).contiguous().softmax(-1).contiguous()
inputs = [given(seed, rows, 256) for rows in (256, 512) for seed in range(4)]
made = [model(x).float().numpy() for x in inputs]
for place in (0, 4):
    step = TinyJit(lambda x, y: (model(x).realize(), model(y).realize()))
    for _ in range(20):
        for x, y, wanted in zip(inputs[place:place + 4], inputs[place + 1:place + 4] + inputs[place:place + 1],
                                made[place:place + 4], strict=True):
            one, other = step(x, y)
            assert one.float().numpy().tobytes() == wanted.tobytes(), "a replay differs from an eager call"
print(json.dumps([float(abs(m).sum()) for m in made]))
np.savez(sys.argv[1], *made)
"""


@triton
@pytest.mark.gpu
@pytest.mark.parametrize("change", [{"loads": POINTER}, {"persistent": 1}, {"split": 2}], ids=str)
def test_on_a_gpu_they_run_everywhere(change: dict[str, Any], tmp_path: Path) -> None:
    """Projections, and softmaxes as one program each: `kcg.run`, and an exported module in a process without kcg,
    bitwise alike; both near tinygrad's own."""
    import numpy as np

    prepare("CUDA")
    target, toolchain = detect("CUDA", ACTION_SPACE_VERSION)
    rows = []
    for region in (linear(256, "CUDA"), linear(512, "CUDA")):
        p = replace(default_parameters(read_kernel(region), target), **change)
        rows.append(verified(tile_row(region, target, p), target))
    rows += [verified(fused_row(softmax(many, "CUDA"), target), target) for many in (256, 512)]
    path = tmp_path / "RESULT.json"
    write_result(result_of(*rows, target=target, toolchain=toolchain), path)
    (tmp_path / "model.py").write_text(MODEL)
    script, settings = tmp_path / "model.py", {"DEV": "CUDA", "CACHEDB": str(tmp_path / "cache.db")}

    plain = python(script, tmp_path / "plain.npz", **settings)
    assert plain.returncode == 0, plain.stderr
    run = python("-m", "kcg.run", "--result", path, script, tmp_path / "run.npz", **settings)
    assert run.returncode == 0, run.stderr
    assert "2 of 2 kernels and 2 of 2 regions served: 4 by compiled programs (" in run.stderr

    done = python("-m", "kcg.optimize", "export", path, "--python", tmp_path / "tuned_model.py", **settings)
    assert done.returncode == 0 and "2 kernels: 2 as machine code" in done.stdout, done.stderr
    assert "2 regions of several kernels, where they fit: 2 as machine code" in done.stdout
    code = "import runpy, sys, tuned_model; runpy.run_path('model.py', run_name='__main__'); "
    code += "assert not [m for m in sys.modules if m.split('.')[0] in ('kcg', 'triton')]; "
    code += "print(dict(tuned_model.installed[0].counts), file=sys.stderr)"
    alone = python("-c", code, tmp_path / "alone.npz", cwd=tmp_path, **settings, PYTHONPATH=WITHOUT_KCG)
    assert alone.returncode == 0 and alone.stderr.count(" replaced': ") == 4, alone.stderr

    values = [np.load(tmp_path / f"{name}.npz") for name in ("plain", "run", "alone")]
    for name in values[0].files:
        own, here, there = (value[name] for value in values)
        assert here.tobytes() == there.tobytes() and np.allclose(own, here, rtol=0.02, atol=1e-5)
