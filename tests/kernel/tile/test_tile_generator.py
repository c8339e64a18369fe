"""The generator's version: other texts are another version, and what another version made is not known."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import astuple, replace
from pathlib import Path

from tinygrad import Tensor

from kcg.dataset.journal import Journal
from kcg.kernel.composed import Part, schedule_of_parts
from kcg.kernel.generator import GENERATOR_VERSION, TEXTS
from kcg.kernel.kinds import made_by
from kcg.kernel.opts.schedule import RAW
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.targets import TARGETS
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.parameters import (
    CONTRACTION,
    ELEMENTWISE,
    FLASH_ATTENTION,
    FORMS,
    PACKED,
    PIPELINED,
    PREFIX,
    REDUCTION,
    ROWS,
    SPECIALIZED,
    TMA,
    UNPACKING,
    TileParameters,
)
from kcg.kernel.tile.space import schedule_of
from kcg.measure.device_info import toolchain_for
from kcg.types import Measurement, Status, Toolchain, content_id
from kcg.workloads.packed_weights import PackedWeights
from tests.chains import region_of
from tests.kernel.tile.running import HAS_TRITON
from tests.kernels import empty
from tests.known_targets import X86


def product() -> Tensor:
    return (empty(512, 512, dtype="bfloat16") @ empty(512, 768, dtype="bfloat16")).gelu()


def attention() -> Tensor:
    q, k, v = (empty(1, 4, 512, 64, dtype="bfloat16") for _ in range(3))
    return q.scaled_dot_product_attention(k, v, is_causal=True)


def packed() -> Tensor:
    return empty(1, 512) @ PackedWeights()("w", (64, 512), "q4_k").T


def of_one_bit() -> Tensor:
    return empty(1, 4096) @ PackedWeights()("w", (192, 4096), "q1_0").T


def unpacked() -> Tensor:
    vectors = empty(256, 512, dtype="float16")
    return vectors.dot(PackedWeights()("w", (256, 512), "q4_k").T, dtype="float32").cast("float16")


def of_rows() -> Tensor:
    taken = Tensor.arange(512).reshape(512, 1, 1) == empty(256, dtype="int32").reshape(1, 256, 1)
    return taken.where(empty(256, 128).reshape(1, 256, 128), 0).sum(1)


def product_and_rows() -> Tensor:
    return empty(512, 256, dtype="bfloat16") @ empty(256, 128, dtype="bfloat16") + of_rows().cast("bfloat16")


BOTH = ((0,), (1,))
CORPUS: tuple[tuple[Callable[[], Tensor], str, TileParameters], ...] = (
    (lambda: (empty(512, 512) * 2).silu(), "sm_80", TileParameters(ELEMENTWISE, ((0,),), (256,))),
    (lambda: empty(4096, 512).sum(0), "sm_80", TileParameters(REDUCTION, ((0,),), (8,), 1024, num_stages=1)),
    (lambda: empty(4096, 512).sum(0), "sm_80", TileParameters(REDUCTION, ((0,),), (8,), 256, split=4, num_stages=1)),
    (of_rows, "sm_90", TileParameters(REDUCTION, BOTH, (64, 128), 128, num_stages=1)),
    (product_and_rows, "sm_90", TileParameters(CONTRACTION, BOTH, (128, 64), 64, num_stages=3)),
    (lambda: empty(512, 1024).softmax(), "sm_90", TileParameters(ROWS, ((0,),), (1,), 1024, num_stages=1)),
    (lambda: empty(64, 256).cumsum(1), "sm_80", TileParameters(PREFIX, BOTH, (8, 256), 1, num_stages=1)),
    (packed, "sm_90", TileParameters(PACKED, ((0,),), (4,), 32, num_warps=1, num_stages=1, unpacked=16)),
    (of_one_bit, "sm_90", TileParameters(PACKED, ((0,),), (64,), 32, num_warps=8, num_stages=1, unpacked=8)),
    (
        of_one_bit,
        "sm_90",
        TileParameters(PACKED, ((0,),), (64,), 32, num_warps=8, num_stages=1, unpacked=8, persistent=2),
    ),
    (product, "sm_80", TileParameters(CONTRACTION, BOTH, (64, 64), 64, group=8, num_stages=4, fast_math=False)),
    (product, "sm_90", TileParameters(CONTRACTION, BOTH, (128, 128), 64, loads=TMA, persistent=1, num_stages=3)),
    (product, "sm_90", TileParameters(PIPELINED, BOTH, (128, 128), 64, loads=TMA, persistent=1, num_stages=4)),
    (unpacked, "sm_90", TileParameters(UNPACKING, BOTH, (256, 128), 64, loads=TMA, persistent=1, num_stages=4)),
    (attention, "sm_80", TileParameters(FLASH_ATTENTION, ((1,),), (64,), 128, num_stages=3)),
    (attention, "sm_90", TileParameters(SPECIALIZED, ((1,),), (128,), 128, loads=TMA, num_stages=3)),
)
"""Parameters are given, not chosen: another choice is no other generator."""


def test_other_texts_are_another_version_of_the_generator() -> None:
    assert {parameters.form for _, _, parameters in CORPUS} == set(FORMS)
    made = [generate_kernel(read_region(region_of(of())), TARGETS[arch], p) for of, arch, p in CORPUS]
    found = content_id([[one.source, [astuple(launch) for launch in one.launches]] for one in made])
    assert found == TEXTS, (
        "generated programs have changed, so that what was measured of the same parameters is of other programs: in "
        f'kcg/kernel/generator.py raise GENERATOR_VERSION, and store TEXTS: Final = "{found}" beside it'
    )


# ---- what the version is part of

BEFORE = Toolchain("0.14.0", "NVRTC 13.0", "580", "3.9.0", 1, "ptxas 13.4.59")
TODAY = replace(BEFORE, generator=1)
TILE = schedule_of(CORPUS[0][2])


def test_the_generator_is_part_of_what_makes_tile_programs_and_of_nothing_else() -> None:
    parts = schedule_of_parts([Part((0,), RAW), Part((1,), TILE)])
    assert made_by(TODAY, RAW) == made_by(BEFORE, RAW) == OPTS
    assert made_by(BEFORE, TILE) == TILES_BEFORE, "rows of before keep the fingerprint that they have"
    assert made_by(TODAY, TILE) == made_by(TODAY, parts) == TODAY.tile_fingerprint
    assert len({one.tile_fingerprint for one in (BEFORE, TODAY, replace(TODAY, generator=2))} | {OPTS}) == 4


OPTS = "92a140aa77bcbbcc0d4b03fb79c2322d5f5bba0bba0eab1d9765d5b9a4174289"
TILES_BEFORE = "9e8057b01cd3b64ca64a94b59b30cb5801a30f3a17880d9d0f187639615d2335"
"""As the revision before the number says them."""


def test_the_toolchain_of_a_machine_has_it_where_there_are_tile_programs() -> None:
    assert toolchain_for(X86, "", 1).generator == 0
    assert toolchain_for(replace(TARGETS["sm_90"], renderer="PTX"), "580", 1).generator == (
        GENERATOR_VERSION if HAS_TRITON else 0
    )


def test_a_resumed_run_knows_its_opts_and_not_the_programs_of_another_generator(tmp_path: Path) -> None:
    target = TARGETS["sm_90"]
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        for toolchain in (BEFORE, TODAY):
            for fingerprint in toolchain.fingerprints:
                journal.add_toolchain(toolchain, fingerprint)
            for schedule in (RAW, TILE):
                journal.record(
                    Measurement("r", schedule, target.fingerprint, made_by(toolchain, schedule), 1, Status.NOISY)
                )
            if toolchain is BEFORE:
                known = [m for made in TODAY.fingerprints for m in journal.known(target.fingerprint, made, 1)]
                assert [m.schedule for m in known] == [RAW]
                assert journal.measured_elsewhere(target.fingerprint, TODAY.fingerprints, 1) == 1
        assert journal.toolchains() == {
            OPTS: replace(BEFORE, assembler=""),
            TILES_BEFORE: BEFORE,
            TODAY.tile_fingerprint: TODAY,
        }
    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as connection:
        rows = connection.execute("SELECT schedule_kind, generator_version FROM measurements").fetchall()
    assert rows == [("opts", None), ("tile", None), ("tile", "1")]
