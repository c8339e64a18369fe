"""What the headline of attention takes in of matmuls and whole steps."""

from __future__ import annotations

import pytest

from evaluation.flux.headline import of_matmuls, of_steps


def test_bare_matmuls_are_beside_cublas_and_all_beside_torch_compile() -> None:
    def row(tile_s: float, cublas_s: float, compiled_s: float) -> dict[str, object]:
        times = {"tile 0": tile_s, "cublas": cublas_s, "default": compiled_s}
        contenders = {name: {"cold_s": seconds, "status": "ok"} for name, seconds in times.items()}
        return {"section": "matmul", "group": "1024", "tile": "tile 0", "contenders": contenders}

    rows = {"matmul a, bias gelu": row(2.0, 1.0, 4.0), "matmul b, nothing": row(4.0, 3.0, 2.0)}
    found = of_matmuls(rows)
    assert found["matmul_vs_cublas_geomean"] == pytest.approx(0.75)
    assert found["regions_vs_compile_geomean"] == pytest.approx(1.0)
    assert found["regions_vs_compile_min"] == pytest.approx(0.5)


def test_a_step_is_beside_the_fastest_mode_that_was_timed() -> None:
    def row(seconds: float, status: str = "ok") -> dict[str, object]:
        return {"cold_s": seconds, "status": status, "clocks": {"power_w": 700.0}}

    steps = {"step eager": row(0.1), "step default": row(0.4), "step reduce-overhead": row(0.2, "failed")}
    runs = {"1024_cuda": {"rows": {**steps, "step kcg": row(0.3)}}, "768_cuda": {"rows": steps}}
    found = of_steps(runs)
    assert found == pytest.approx(
        {
            "step_ms_1024": 300.0, "compile_ms_1024": 400.0, "step_vs_compile_1024": 0.75,
            "step_joules_1024": 210.0, "compile_joules_1024": 280.0,
        }
    )  # fmt: skip
