"""Generated programs compile for GPUs that need not be here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import pytest
from tinygrad import Tensor

from kcg.compat.assembler import assembler
from kcg.errors import ScheduleError
from kcg.kernel.codec import kernel_of
from kcg.kernel.compile import render_schedule
from kcg.kernel.kinds import Unsupported, kind_named
from kcg.kernel.opts.schedule import RAW
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.kernel import read_kernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile import compile as compiling
from kcg.kernel.tile.compile import PINNED, PINNED_OF_NVIDIA, _options, compile_tile, kept_tile
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.device import device_of
from kcg.kernel.tile.forms import plan_of
from kcg.kernel.tile.generate import generate
from kcg.kernel.tile.legal import legal_values, random_parameters
from kcg.kernel.tile.parameters import CONTRACTION, POINTER, TMA, TileParameters
from kcg.kernel.tile.prior import default_parameters
from kcg.kernel.tile.program import TileSource
from kcg.kernel.tile.space import TileSpace, schedule_of
from kcg.types import Region, Target
from tests.chains import region_of
from tests.kernel.tile.random_chains import FAMILIES as CHAIN_FAMILIES
from tests.kernel.tile.random_chains import random_chain
from tests.kernel.tile.random_kernels import FAMILIES, random_kernel
from tests.kernel.tile.running import HAS_TRITON, WITHOUT
from tests.kernel.tile.test_tile_programs import EVERY, EXAMPLES
from tests.kernel.tile.test_tile_regions import CHAINS, activation_beside, flux_projection, projection, split_sum
from tests.kernels import empty, example_region, kernels_of
from tests.known_targets import KNOWN_TARGETS
from tests.waiting import PATIENCE_S

CHILD = Path(__file__).with_name("compiler_child.py")
pytestmark = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)


def regions() -> dict[str, Region]:
    large = {
        "linear_gelu": (empty(1024, 512, dtype="bfloat16") @ empty(2048, 512, dtype="bfloat16").T).gelu(),
        "linear": empty(4096, 1024, dtype="float16") @ empty(4096, 1024, dtype="float16").T,
        "decode": empty(1, 4096, dtype="float16") @ empty(4096, 1024, dtype="float16"),
        "float32": empty(256, 512) @ empty(512, 256),
        "int8": empty(512, 512, dtype="int8").dot(empty(512, 512, dtype="int8").T, dtype="int32"),
        "fp8e5m2": empty(512, 512, dtype="fp8e5m2").dot(empty(512, 512, dtype="fp8e5m2").T, dtype="float32"),
    }
    made = {name: Region((kernel_of(kernels_of(x)[-1]),)) for name, x in large.items()}
    return {**{name: example_region(name) for name in EXAMPLES}, **made}


def target_of(arch: str) -> Target:
    """A GPU of an architecture, whose number of multiprocessors does not matter here."""
    return KNOWN_TARGETS.get(arch, replace(KNOWN_TARGETS["sm_90"], arch=arch))


def compiled(programs: dict[str, TileSource], arch: str, folder: Path) -> dict[str, dict[str, Any]]:
    """What the compiler says of each program, made in one child; none may fail."""
    jobs = []
    for name, program in programs.items():
        (folder / f"{name.replace('.', '_')}.py").write_text(program.source)
        jobs.append({"name": name.replace(".", "_"), "launches": [asdict(launch) for launch in program.launches]})
    (folder / "jobs.json").write_text(json.dumps({"capability": int(arch[3:]), "jobs": jobs}))
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder / "cache")}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, str(CHILD), str(folder)], env=environment, timeout=PATIENCE_S, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    made: dict[str, dict[str, Any]] = json.loads((folder / "made.json").read_text())
    assert set(made) == {job["name"] for job in jobs}
    assert not {name: row["error"] for name, row in made.items() if row["error"]}
    return made


TENSOR_CORE = {"sm_80": "mma.sync", "sm_90": "wgmma", "sm_100": "tcgen05.mma", "sm_120": "mma.sync"}
"""What Triton makes of large products on each architecture."""


@pytest.mark.parametrize(
    ("arch", "examples"),
    [
        ("sm_90", EXAMPLES[2 :: 4 * EVERY]),
        pytest.param("sm_80", [], marks=pytest.mark.slow),
        pytest.param("sm_100", [], marks=pytest.mark.slow),
        pytest.param("sm_120", [], marks=pytest.mark.slow),
        *(pytest.param(arch, EXAMPLES, marks=pytest.mark.slow) for arch in ("sm_80", "sm_90", "sm_100", "sm_120")),
    ],
    ids=lambda of: of if isinstance(of, str) else {0: "none", len(EXAMPLES): "all"}.get(len(of), "some"),
)
def test_examples_compile(arch: str, examples: list[str], tmp_path: Path) -> None:
    """The prior's choice of each; the large ones use the tensor cores of the architecture, descriptors where it has
    them, and stay within its shared memory."""
    target = target_of(arch)
    asked = {name: of for name, of in regions().items() if name in examples or name not in EXAMPLES}
    programs = {n: generate(of, target, default_parameters(read_kernel(of), target)) for n, of in asked.items()}
    made = compiled(programs, arch, tmp_path)
    assert all(row["shared"] <= device_of(target).shared_bytes for row in made.values())
    for name in ("linear", "linear_gelu"):
        assert made[name]["tensor_core"] == TENSOR_CORE[arch]
        assert made[name]["scratch"] == (arch != "sm_80")
    assert made["linear_gelu"]["reciprocal"] and not made["linear_gelu"]["tanh"] and not made["float32"]["tf32"]
    assert made["int8"]["tensor_core"] and made["fp8e5m2"]["tensor_core"]


def test_a_known_program_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a known schedule the whole program is in the user's cache, and only that one: a damaged part, another target
    or another version of the generator have a text of their own."""
    region, target = example_region(EXAMPLES[0]), KNOWN_TARGETS["sm_90"]
    schedule = schedule_of(default_parameters(read_kernel(region), target))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kept_tile(region, schedule, target) is None
    made = compile_tile(region, schedule, target)
    (listed,) = (tmp_path / "kcg" / "tile-programs").rglob("*.json")
    (code,) = (tmp_path / "kcg" / "tile").rglob("*.json")

    def refuse(*_: object) -> NoReturn:
        raise AssertionError("it is written again")

    with monkeypatch.context() as patched:
        patched.setattr(compiling, "_generated", refuse)
        assert kept_tile(region, schedule, target) == made
        with pytest.raises(AssertionError, match="written again"):
            kept_tile(region, schedule, replace(target, cores=7))
    whole, text = listed.read_text(), code.read_text()
    listed.write_text(whole.replace("tile_kernel", "tile_kernex", 1))
    assert kept_tile(region, schedule, target) == made, "a damaged list is written again"
    listed.write_text(whole)
    code.unlink()
    assert kept_tile(region, schedule, target) is None, "its machine code is not there"
    code.write_text(text)
    symbolic, at = example_region("symbolic"), [(("length", n),) for n in (1, 20, 32)]
    schedule_of_it = schedule_of(default_parameters(read_kernel(symbolic), target))
    compile_tile(symbolic, schedule_of_it, target, variables=at[0], also=(at[1],))
    with monkeypatch.context() as patched:
        patched.setattr(compiling, "_generated", refuse)
        found = kept_tile(symbolic, schedule_of_it, target, variables=at[1])
        assert found is not None and found.launches[0].compiled.values == (20,)
        with pytest.raises(AssertionError, match="written again"):
            kept_tile(symbolic, schedule_of_it, target, variables=at[2])
    monkeypatch.setattr(compiling, "TEXTS", "other")
    with monkeypatch.context() as patched, pytest.raises(AssertionError, match="written again"):
        patched.setattr(compiling, "_generated", refuse)
        kept_tile(region, schedule, target)


@pytest.mark.slow
def test_shared_memory_of_operands_that_are_computed(tmp_path: Path) -> None:
    """What is loaded for them has one block less than stages; the columns' result has one, the rows' has none."""
    rows, columns, terms = 512, 1024, 768

    def drawn(*shape: int, dtype: str = "bfloat16") -> Tensor:
        return empty(*shape, dtype=dtype)

    x, y, weight = drawn(rows, terms), drawn(rows, terms), drawn(terms, columns)
    wide = drawn(rows, terms, dtype="float32"), drawn(terms, columns, dtype="float32")
    scaled = wide[0] * drawn(rows, 1, dtype="float32") * drawn(terms, dtype="float32")
    products = {
        "one of two": (x * y.silu()) @ weight,
        "one of terms alone": scaled.cast("bfloat16") @ weight,
        "columns": x @ (drawn(terms, columns, dtype="int8").cast("bfloat16") * drawn(columns)),
        "both": (wide[0] + scaled).cast("bfloat16") @ wide[1].cast("bfloat16"),
    }
    p = TileParameters(CONTRACTION, ((0,), (1,)), (128, 128), reduce_tile=32, num_warps=8, num_stages=3)
    kernels = {name: region_of(product) for name, product in products.items()}
    made = compiled({name: generate(of, target_of("sm_90"), p) for name, of in kernels.items()}, "sm_90", tmp_path)
    for name, region in kernels.items():
        expected = plan_of(read_kernel(region), target_of("sm_90"), p).shared_bytes
        assert (0.9 if name == "both" else 1.0) * expected <= made[name]["shared"] <= expected, name


LEFT: dict[str, Any] = {
    "warp_size": 32, "maxnreg": None, "ir_override": None, "extern_libs": None, "arch": None, "backend_name": "cuda",
    "supported_fp8_dtypes": ("fp8e5", "fp8e4b15"), "deprecated_fp8_dot_operand_dtypes": (),
    "allowed_dot_input_precisions": ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6"),
    "max_num_imprecise_acc_default": None, "ptx_options": None,
}  # fmt: skip
"""Options of Triton that are not pinned, and their defaults, in its versions 3.6 and 3.9 alike: what follows from the
architecture, or concerns the assembler that Triton does not call here."""
NEW: dict[str, dict[str, Any]] = {
    "3.6": {},
    "3.9": {"sched4reg": False, "clc": False, "fpsan_homomorphic_casts": False, "min_shared_mem": None},
}


@pytest.mark.slow
def test_what_a_shell_sets_of_triton_makes_no_other_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    region, made = regions()["linear_gelu"], []
    schedule = schedule_of(default_parameters(read_kernel(region), target_of("sm_90")))
    for place, words in enumerate(({}, {"TRITON_OVERRIDE_ARCH": "sm80", "TRITON_FORCE_DISABLE_FP_FUSION": "1"})):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / str(place)))
        for name, value in words.items():
            monkeypatch.setenv(name, value)
        made.append(compile_tile(region, schedule, target_of("sm_90")).launches[0].compiled.binary)
        assert all(os.environ[name] == value for name, value in words.items())
    assert made[0] == made[1]


def test_options_of_triton_are_pinned_or_alike_in_its_versions() -> None:
    import triton
    from triton.backends.nvidia.compiler import CUDAOptions

    defaults = {name: field.default for name, field in CUDAOptions.__dataclass_fields__.items()}
    region, target = regions()["linear"], target_of("sm_90")
    source = generate(region, target, default_parameters(read_kernel(region), target))
    given = {*_options(source.launches[0], assembler()), *PINNED, *PINNED_OF_NVIDIA}
    if (new := NEW.get(version := triton.__version__[:3])) is None:
        pytest.skip(f"options of Triton {version} that are not known: {set(defaults) - given - set(LEFT)}")
    assert given <= set(defaults), "a name that Triton does not know is left out without a word"
    assert {name: default for name, default in defaults.items() if name not in given} == LEFT | new
    pinned = PINNED | PINNED_OF_NVIDIA
    assert {name: defaults[name] for name in pinned} == pinned, "binaries that are kept were made with these"


def test_shared_memory_is_that_of_the_architecture_not_what_static_arrays_may_take() -> None:
    kib = dict.fromkeys(("sm_90", "sm_90a", "sm_100", "sm_100a"), 227) | dict.fromkeys(("sm_86", "sm_89", "sm_120"), 99)
    kib["sm_80"] = 163
    assert {arch: device_of(target_of(arch)).shared_bytes >> 10 for arch in kib} == kib


@pytest.mark.slow
def test_a_program_that_takes_more_tensor_memory_than_there_is_does_not_compile() -> None:
    """Triton would say so only when it loads it: sums of 256 x 384 are 768 columns of 128 rows."""
    p = TileParameters(CONTRACTION, ((0,), (1,)), (256, 384), reduce_tile=64, num_warps=8, num_stages=1, loads=TMA)
    with pytest.raises(ScheduleError, match="it takes 768 columns of tensor memory, of 512"):
        compile_tile(regions()["linear"], schedule_of(p), target_of("sm_100"))
    small = compile_tile(regions()["linear"], schedule_of(replace(p, tile=(128, 128))), target_of("sm_100"))
    assert dict(small.launches[0].compiled.report)["tcgen05"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        ["linear_gelu", "fp8e5m2"],
        pytest.param(["float32", *EXAMPLES], marks=pytest.mark.slow),
    ],
    ids=["some", "all"],
)
def test_programs_compile_for_gfx942(names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prior's choice and a random one of each, to code objects whose functions take pointers and then integers.
    No more is claimed: nothing is searched there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target, all_of_them = KNOWN_TARGETS["gfx942"], regions()
    for name in names:
        kernel = read_kernel(all_of_them[name])
        variables = tuple((v.arg.name, int(v.vmax)) for v in kernel.variables)
        for p in (default_parameters(kernel, target), random_parameters(kernel, target, Random(name))):
            program = compile_tile(all_of_them[name], schedule_of(p), target, variables=variables)
            for one in (launch.compiled for launch in program.launches):
                assert one.binary.startswith(b"\x7fELF") and one.local_size[0] % 64 == 0, "waves of 64 threads"
                assert one.shared_bytes <= device_of(target).shared_bytes
                assert [n for n, *_ in one.signature] == [None] * len(one.slots) + [n for n, _ in variables]
            if name in ("linear_gelu", "int8", "fp8e5m2") and p.form == CONTRACTION:
                assert dict(program.launches[0].compiled.report)["mfma"], "its matrix cores"
    refused = kind_named("tile").space(all_of_them["linear"], target)
    assert refused == Unsupported("tile programs compile for gfx942, and none was ever run there")


def test_on_amd_nothing_is_chosen_that_only_nvidia_has() -> None:
    kernel, target = read_kernel(regions()["linear_gelu"]), KNOWN_TARGETS["gfx942"]
    p = default_parameters(kernel, target)
    fixed = {
        "evict_first": (),
        "evict_last": (),
        "maxnreg": 0,
        "fast_math": True,
        "precision": "ieee",
        "loads": POINTER,
    }
    assert {field: legal_values(kernel, target, p, field) for field in fixed} == {f: (v,) for f, v in fixed.items()}
    assert "_tanh" not in generate(regions()["linear_gelu"], target, p).source


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 40), marks=pytest.mark.slow)], ids=["one", "many"])
def test_random_programs_of_random_kernels_compile(seeds: range, tmp_path: Path) -> None:
    target, programs = KNOWN_TARGETS["sm_90"], dict[str, TileSource]()
    for family in FAMILIES:
        for seed in seeds:
            region = Region((kernel_of(random_kernel(family, seed)),))
            parameters = random_parameters(read_kernel(region), target, Random(seed))
            programs[f"{family.__name__}_{seed}"] = generate(region, target, parameters)
    compiled(programs, "sm_90", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fp8e4m3", "fp8e5m2"])
def test_floats_of_8_bits_are_made_by_the_conversion_that_tinygrads_kernels_use(kind: str, tmp_path: Path) -> None:
    """From whatever type, by way of float32; CUDA's own class converts with saturation."""
    target, programs = KNOWN_TARGETS["sm_90"], dict[str, TileSource]()
    for source in ("float32", "float16", "bfloat16", "float64", "int32", "uint8", "bool"):
        region = Region((kernel_of(kernels_of(empty(256, dtype=source).cast(kind))[-1]),))
        assert f"((__nv_{kind[:3]}_{kind[3:]})(val0))" in render_schedule(region, RAW, target)[1]
        programs[source] = generate(region, target, default_parameters(read_kernel(region), target))
    wanted = f"cvt.rn.satfinite.{kind[3:]}x2.f32"
    made = compiled(programs, "sm_90", tmp_path)
    assert all([c for c in row["conversions"] if kind[3:] in c] == [wanted] for row in made.values())


@pytest.mark.slow
def test_hints_about_neighbours_leave_stores_as_narrow_as_they_are(tmp_path: Path) -> None:
    """Rows of 49 elements are aligned to nothing: no two of them may be stored at once."""
    target, programs = KNOWN_TARGETS["sm_90"], dict[str, TileSource]()
    for size in (7, 8):
        x, w = empty(4, 32, size, size, dtype="float16"), empty(64, 32, 1, 1, dtype="float16")
        region = Region((kernel_of(kernels_of(x.conv2d(w))[-1]),))
        programs[f"of_{size}"] = generate(region, target, default_parameters(read_kernel(region), target))
    assert [text.source.count("max_contiguous") > 0 for text in programs.values()] == [True, False]
    made = compiled(programs, "sm_90", tmp_path)
    assert made["of_7"]["stores"] == ["st.global.b16"] and "st.global.b16" not in made["of_8"]["stores"]


def fused_regions() -> dict[str, Region]:
    """Norms, softmax and losses as models have them, and what is made of projections."""
    x = empty(512, 3072, dtype="bfloat16")
    wide = x.float()
    scale, shift, weight = (empty(3072, dtype="bfloat16") for _ in range(3))
    logits, labels = empty(64, 50304, dtype="bfloat16"), empty(64, dtype="int32")
    large = {
        "large_softmax": (empty(4096, 4096, dtype="bfloat16").softmax(-1),),
        "modulated": (x.layernorm().cast("bfloat16") * (1 + scale) + shift,),
        "long_loss": (logits.float().sparse_categorical_crossentropy(labels, reduction="none"),),
        "large_rms": (weight * (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).cast("bfloat16"),),
    }  # fmt: skip
    small = {chain.__name__: (chain("bfloat16"),) for chain in CHAINS}
    products = {chain.__name__: chain("bfloat16") for chain in (projection, activation_beside, split_sum)}
    exact = {f"{chain.__name__}_float32": chain("float32") for chain in (projection, split_sum)}
    return {name: region_of(*tensors) for name, tensors in {**large, **small, **products, **exact}.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "drawn"), [("sm_90", False), *(pytest.param(a, True, marks=pytest.mark.slow) for a in ("sm_90", "sm_80"))]
)
def test_programs_of_several_kernels_compile(arch: str, drawn: bool, tmp_path: Path) -> None:
    """The prior's choice of each region, or one of random parameters; none takes more shared memory than there is."""
    target, programs = KNOWN_TARGETS[arch], dict[str, TileSource]()
    for name, region in fused_regions().items():
        kernel = read_region(region)
        assert len(region.kernels) > 1
        chosen = random_parameters(kernel, target, Random(name)) if drawn else default_parameters(kernel, target)
        programs[name] = generate(region, target, chosen)
    made = compiled(programs, arch, tmp_path)
    assert all(row["shared"] <= device_of(target).shared_bytes for row in made.values())
    for name in ("projection", "activation_beside", "split_sum"):
        assert made[name]["tensor_core"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "size"),
    [*(pytest.param(rows, 128, marks=pytest.mark.slow) for rows in (4608, 2560)), (4608, 64)],
    ids=["flux 1024", "flux 768", "heads of 64"],  # Flux's own is compiled by test_the_projection_of_flux_fits
)
def test_query_and_key_with_norms_and_rotations_need_no_more_registers_than_there_are(
    rows: int, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a search begins with: a wide tile, three stages or more, and nothing is spilled."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    region = region_of(*flux_projection("bfloat16", heads=3072 // size, size=size, rows=rows, terms=3072))
    target = replace(KNOWN_TARGETS["sm_90"], cache_bytes=50 << 20)
    space = TileSpace(region, target, read_region(region))
    p = space.parameters(space.start())
    assert p.tile[0] == 128 and p.tile[1] in (128, 256) and p.num_warps == 8 and p.num_stages >= 3
    (launch,) = space.compile(space.start()).launches
    report = dict(launch.compiled.report)
    assert report["wgmma"] and report["spilled_bytes"] == report["stack_bytes"] == 0
    assert report["shared_bytes"] <= device_of(target).shared_bytes


@pytest.mark.slow
@pytest.mark.parametrize("width", [50257, 50264], ids=["from anywhere", "aligned"])
def test_loops_over_long_rows_exchange_nothing_and_take_few_registers(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads give each other what they have of a row only behind the loop: a maximum and a sum in each warp, then
    among warps; and before it what a thread loads is what it keeps, 16 bytes at once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    logits, labels = empty(4096, width, dtype="bfloat16"), empty(4096, dtype="int32")
    region = region_of(logits.float().sparse_categorical_crossentropy(labels, reduction="none"))
    space = TileSpace(region, KNOWN_TARGETS["sm_90"], read_region(region))
    p = space.parameters(space.start())
    row = compiled({"loss": generate(region, KNOWN_TARGETS["sm_90"], p)}, "sm_90", tmp_path)["loss"]
    assert "ld.global.v4.b32" in row["loads"] and row["shuffles"] <= 3 * (5 + 5)
    (launch,) = space.compile(space.start()).launches
    report = dict(launch.compiled.report)
    assert report["registers"] <= 48 and report["spilled_bytes"] == report["stack_bytes"] == 0


@pytest.mark.slow
def test_pairs_are_stored_16_bytes_at_once(tmp_path: Path) -> None:
    region = region_of(*flux_projection("bfloat16", heads=24, size=128, rows=4608, terms=3072))
    program = generate(region, KNOWN_TARGETS["sm_90"], default_parameters(read_region(region), KNOWN_TARGETS["sm_90"]))
    assert compiled({"flux": program}, "sm_90", tmp_path)["flux"]["stores"] == ["st.global.v4.b32"]


def test_programs_that_would_spill_are_dear() -> None:
    """Of whole tiles of 256 columns in one part the compiler spills 900 bytes and more."""
    region = region_of(*flux_projection("bfloat16", heads=24, size=128, rows=4608, terms=3072))
    target, kernel = KNOWN_TARGETS["sm_90"], read_region(region)
    p = replace(default_parameters(kernel, target), num_stages=3)
    whole, plain = replace(p, epilogue_parts=1), replace(p, loads=POINTER)
    least = predicted_seconds(kernel, target, p)
    assert all(predicted_seconds(kernel, target, one) > 2 * least for one in (whole, plain))


@pytest.mark.slow
def test_random_programs_of_random_chains_compile(tmp_path: Path) -> None:
    target, programs = KNOWN_TARGETS["sm_90"], dict[str, TileSource]()
    for family in CHAIN_FAMILIES:
        for seed in range(10):
            sequence = random_chain(family, seed)
            region = sequence.region(*range(len(sequence.calls)))
            try:
                parameters = random_parameters(read_region(region), target, Random(seed))
                programs[f"{family.__name__}_{seed}"] = generate(region, target, parameters)
            except UnsupportedTile:
                continue
    assert len(programs) > 35
    compiled(programs, "sm_90", tmp_path)
