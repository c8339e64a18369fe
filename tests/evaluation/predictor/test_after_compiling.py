"""Machine instructions are counted by class and by loop, and judged by what they tell beside what was known before."""

from __future__ import annotations

from typing import Any

import numpy as np

from evaluation.predictor.after_compiling import (
    CODE,
    MULTIPLIED,
    REPORT,
    Asked,
    counts_of,
    depths_of,
    figures_of,
    instructions_of,
    read_listing,
    report_of,
)
from kcg.kernel.targets import target_named
from kcg.kernel.tile.seen import WHOLE
from kcg.predictor.metrics import Floors

LISTING = """
	.headerflags	@"EF_CUDA_64BIT_ADDRESS EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/                   IMAD.MOV.U32 R2, RZ, RZ, 0x70 ;
        /*0030*/              @!P0 BRA 0xf0 ;
        /*0040*/                   STS.64 [R2], R4 ;
        /*0050*/                   BRA.DIV UR4, 0x130 ;
        /*0060*/                   SHFL.BFLY PT, R3, R3, 0x1, 0x1f ;
        /*0070*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24 ;
        /*0080*/                   LDG.E.U16 R5, desc[UR4][R2.64+0x2] ;
        /*0090*/               @P1 BRA 0x70 ;
        /*00a0*/                   HADD2.F32 R5, -RZ, R5.H0_H0 ;
        /*00b0*/                   BRA.U UP0, 0x40 ;
        /*00c0*/                   MUFU.EX2 R5, R5 ;
        /*00d0*/              @UP1 UTMASTG.2D [UR4], [UR8] ;
        /*00e0*/                   EXIT ;
        /*00f0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR10+0x28080], R4 ;
        /*0100*/              @!P0 BRA 0xf0 ;
        /*0110*/                   BRA 0x40 ;
        /*0120*/                   BRA 0x120;
        /*0130*/                   WARPSYNC.COLLECTIVE R4, 0x140 ;
        /*0140*/                   BRA 0x70 ;
        /*0150*/                   NOP;
"""


def test_loops_are_what_reaches_itself_and_does_more_than_wait() -> None:
    code = read_listing(LISTING)
    depths = dict(zip((one.address for one in code), depths_of(code).tolist(), strict=True))
    assert len(code) == 22
    assert [at for at, depth in depths.items() if depth == 2] == [0x70, 0x80, 0x90]
    assert [at for at, depth in depths.items() if depth == 1] == [0x40, 0x50, 0x60, 0xA0, 0xB0]
    assert [at for at, depth in depths.items() if depth < 0] == [0x120, 0x130, 0x140, 0x150], "never reached"
    assert depths[0xF0] == 0, "a wait, out of the way, that comes back is no loop"
    assert depths_of([]).tolist() == []


def test_instructions_are_counted_by_class_and_width() -> None:
    found = counts_of(read_listing(LISTING))
    assert found["load"] == [1, 0, 1] and found["load of 16 bytes"] == [1, 0, 0]
    assert found["narrow load"] == [0, 0, 1]
    assert found["tensor core"] == [0, 0, 1] and found[MULTIPLIED] == [0, 0, 64 * 128 * 16]
    assert found["conversion"] == found["shuffle"] == found["shared store"] == [0, 1, 0]
    assert found["special"] == found["TMA"] == found["move"] == found["constant"] == [1, 0, 0]
    assert found["branch"] == [4, 2, 1] and "integer" not in found
    (product,) = read_listing("/*0000*/ HMMA.16816.F32.BF16 R4, R8, R2, R4 ;")
    assert product.multiplied == 16 * 8 * 16


def test_numbers_of_a_program_are_finite_and_share_the_multiprocessor_by_registers() -> None:
    target, plan = target_named("h200"), np.zeros(len(WHOLE))
    launch = {"registers": 128, "spilled_bytes": 0, "stack_bytes": 0, "shared_bytes": 1024, "threads": 256}
    launches: list[dict[str, Any]] = [{**launch, "programs": 528, "counts": counts_of(read_listing(LISTING))}]
    report = dict(zip(REPORT, report_of(launches, plan, target), strict=True))
    assert report["programs at once"] == 1.0 and report["waves"] == 1.0, "two of 65,536 registers; 528 of 2 · 132"
    code = dict(zip(CODE, instructions_of(launches, plan, 1e-5, target), strict=True))
    assert np.isfinite(list(code.values())).all()
    assert code["load, all"] == np.log2(3) and code["load, nested"] == 1.0 and code["share of float"] == 0.0


def made_up(*, decides: bool) -> Asked:
    """Eighty regions of ten families, whose programs differ by what the compiler made of them, or by chance."""
    rng = np.random.default_rng(0)
    kernel = np.repeat(np.arange(80), 8)
    code, chance = rng.standard_normal((640, 6)), rng.standard_normal(640)
    family = np.array([f"family {number % 10}" for number in kernel])
    cost = np.full(640, np.log(1e-4))
    log_s = cost + 0.3 * (code[:, 2] if decides else chance)
    return Asked(log_s, cost, kernel, np.zeros(640), family, kernel % 10 % 5, rng.standard_normal((640, 5)),
                 rng.standard_normal((640, 2)), code)  # fmt: skip


def test_what_only_the_machine_code_decides_is_told_after_compiling() -> None:
    found = figures_of(made_up(decides=True), [None], Floors())
    assert found["regions"] == 80 and found["rows"] == 640 and found["families"] == 10
    assert found["arms"]["analytic"]["pairwise"]["mean"] == 0.5
    assert found["arms"]["after"]["pairwise"]["mean"] > 0.9
    assert found["arms"]["compiled"]["near_best"]["interval"][0] > 0.7
    apart = found["differences"]["after - before"]["pairwise"]
    assert apart["interval"][0] > 0.3 and apart["by_seed"] == [apart["mean"]]


def test_what_nothing_decides_is_not_told_by_either() -> None:
    asked = made_up(decides=False)
    found = figures_of(asked, [asked.cost], Floors(), dict.fromkeys(range(80), "matmul"))
    low, high = found["differences"]["after - before"]["pairwise"]["interval"]
    assert low < 0 < high
    low, high = found["differences"]["whole record, after - whole record"]["pairwise"]["interval"]
    assert low < 0 < high
    assert found["differences"]["after - before"]["pairwise"]["by_kind"]["matmul"]["regions"] == 80
