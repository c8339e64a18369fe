"""What kcg is compared with: the same numbers in every library, timed in turns, kept row by row."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tinygrad import Tensor

from evaluation import rows as figures
from evaluation.pytorch import cases, in_pytorch, in_tinygrad, kind, models, models_torch
from evaluation.pytorch.cases import least_bytes, operations
from evaluation.pytorch.compare import headline
from evaluation.pytorch.reports import profiles_text, times_table
from evaluation.pytorch.sum_levels import PARTIALS, in_uops
from evaluation.pytorch.turns import IN_TINYGRAD, IN_TORCH, Contender, Pool, Turns
from evaluation.rows import Rows
from tests.evaluation.pytorch.running import ROOT, run
from tests.waiting import PATIENCE_S, wait_until

DEV = os.environ["DEV"]
ROPE = {"kind": "rope", "tokens": 24, "heads": 3, "width": 16, "dtype": "float32"}
CASES = (
    {"kind": "sum", "elements": 4096, "dtype": "float32"},
    {**ROPE, "backward": False},
    {**ROPE, "backward": True},
    {"kind": "softmax", "rows": 12, "width": 40, "dtype": "float32"},
    {"kind": "layernorm", "rows": 12, "width": 40, "dtype": "float32"},
    {"kind": "gelu_mlp", "rows": 12, "width": 16, "dtype": "float32"},
    {"kind": "attention", "heads": 3, "tokens": 20, "width": 16, "dtype": "float32"},
)
TORCH = Contender("torch", IN_TORCH, {"how": "eager"})
TINY = Contender("tinygrad", IN_TINYGRAD, {"how": "hand-coded"})


def name_of(case: dict[str, Any]) -> str:
    return f"{case['kind']}{'-backward' if case.get('backward') else ''}"


def by_tinygrad(case: dict[str, Any]) -> list[float]:
    step = in_tinygrad.build(case)
    return kind.values_of(in_tinygrad.outputs_of(step.run(**step.inputs))[0].float().numpy())


def by_pytorch(case: dict[str, Any]) -> list[float]:
    return list(in_pytorch.prepare({**case, "how": "eager", "dev": "CPU"}).values())


def by_torch(case: dict[str, Any]) -> list[float]:
    function, inputs = in_pytorch.build(case, "cpu")
    assert not isinstance(function, kind.Trained)
    if case.get("backward"):
        return kind.values_of(in_pytorch.backward_of(function, inputs)().numpy())
    with torch.no_grad():
        return kind.values_of(function(**inputs).float().numpy())


# -- the same numbers everywhere


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_both_libraries_give_the_reference(case: dict[str, Any]) -> None:
    expected = cases.reference(case)
    assert expected is not None and any(expected)
    for values in (by_tinygrad(case), by_torch(case)):
        assert figures.distance(values, expected) < 1e-5


def test_the_backward_pass_of_rope_is_not_its_forward_pass() -> None:
    forward, backward = (cases.reference({**ROPE, "backward": b}) for b in (False, True))
    assert forward is not None and backward is not None
    assert figures.distance(forward, backward) > 0.1


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        pytest.param("resnet", "mini", marks=pytest.mark.slow),
        pytest.param("gpt2", "mini", marks=pytest.mark.slow),
        pytest.param("bert", "mini", marks=pytest.mark.slow),
        pytest.param("llama", "mini", marks=pytest.mark.slow),
        ("llama", "mini-decode"),
    ],
)
def test_the_models_are_those_of_the_zoo(name: str, preset: str) -> None:
    case = {"kind": "family", "name": name, "preset": preset}
    assert figures.distance(by_pytorch(case), by_tinygrad(case)) < 1e-5


@pytest.mark.parametrize("title", [pytest.param(title, marks=pytest.mark.slow) for title in models.MODELS["mini"]])
def test_models_of_other_sizes_are_the_same_in_both(title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "DRAWN", 101)  # so that parameters repeat
    (case,) = [entry.case for entry in models.entries("mini") if entry.key == title]
    step = in_tinygrad.prepare({**case, "dev": DEV})
    expected = list(step.values())
    assert any(expected)
    assert figures.distance(by_pytorch(case), expected) < 1e-4


def test_a_training_step_has_the_gradients_of_all_blocks() -> None:
    (case,) = [entry.case for entry in models.entries("mini") if entry.key == models.TRAINING]
    config = models.config_of(case)
    names = models.family_of(case).gradients(config)
    assert names[case["compared"] - 1] == models.COMPARED
    assert {name.split(".")[1] for name in names if name.startswith("h.")} == {"0", "1"}


def test_a_billion_parameters_are_drawn_once_and_the_same_in_both() -> None:
    count = models.DRAWN + 7
    ours = models.RepeatedParameters("bfloat16", seed=3)("w", 1, count)
    theirs = models_torch.TorchParameters("bfloat16", "cpu", 3)("w", 1, count)
    values = ours.float().numpy()
    assert np.array_equal(values, theirs.float().numpy())
    assert np.array_equal(values[0, :7], values[0, models.DRAWN :])


def test_rounding_to_bfloat16_is_that_of_torch() -> None:
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    expected = torch.from_numpy(values).bfloat16().float().numpy()
    assert np.array_equal(kind.as_stored(values, "bfloat16"), expected)
    assert np.array_equal(kind.as_stored(values, "float16"), values.astype(np.float16))


@pytest.mark.parametrize("elements", [PARTIALS[1] * 4, PARTIALS[1] * 16, 4096])
def test_the_sum_in_uops_is_the_sum(elements: int) -> None:
    values = np.random.default_rng(1).integers(-8, 8, elements).astype(np.float32)
    kernels = in_uops(Tensor(values).realize())
    assert kernels.item() == values.sum()


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["cuda", "ptx"])
def test_the_sum_in_cuda_code_is_the_sum(how: str) -> None:
    with Pool("CUDA") as pool:
        case = {"kind": "sum", "elements": (1 << 20) + 20, "dtype": "float32"}
        contender = Contender(how, IN_TINYGRAD, {"how": how})
        row = Turns(pool).row([contender], case, cases.reference(case))[how]
    assert row["status"] == "ok" and row["error"] < 1e-6


def test_triton_gives_the_reference() -> None:
    pytest.importorskip("triton")
    with Pool(DEV) as pool:
        for case in CASES[1:3]:
            triton = Contender("triton", IN_TORCH, {"how": "triton"})
            row = Turns(pool).row([triton], {**case, "width": 16}, cases.reference(case))["triton"]
            assert row["status"] == "ok" and row["error"] < 1e-6


# -- in turns


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(DEV) as opened:
        yield opened


@pytest.mark.slow
def test_contenders_of_both_libraries_are_timed_in_turns(pool: Pool) -> None:
    row = Turns(pool, least=7).row([TINY, TORCH], CASES[3], cases.reference(CASES[3]))
    assert list(row) == ["tinygrad", "torch"]
    for found in row.values():
        assert found["status"] == "ok" and found["samples"] >= 7 and found["error"] < 1e-6
        for state in ("cold", "warm", "called"):
            low, high = found[f"{state}_interval_s"]
            assert 0 < low <= found[f"{state}_s"] <= high


def test_what_stands_in_for_a_reference_has_no_error_of_its_own(pool: Pool) -> None:
    alone = Turns(pool).row([TORCH], CASES[3], keep_values=True)["torch"]
    assert alone["status"] == "ok" and "error" not in alone
    first, second = Turns(pool).row([TORCH, TINY], CASES[3]).values()
    assert "error" not in first and 0 <= second["error"] < 1e-6
    later = Turns(pool).row([TINY], CASES[3], alone["values"])["tinygrad"]  # of which five digits are kept
    assert 0 <= later["error"] < 1e-4


@pytest.mark.slow
def test_what_fails_is_a_contender_with_a_reason_and_the_others_go_on(pool: Pool) -> None:
    lost = [
        Contender("unheard", IN_TORCH, {"how": "no-such-mode"}),
        Contender("nowhere", "no_such_side"),
        Contender("cuda", IN_TINYGRAD, {"how": "cuda"}),
    ]
    row = Turns(pool).row([*lost, TORCH], CASES[0], cases.reference(CASES[0]))
    assert row["torch"]["status"] == "ok"
    assert {name: row[name]["status"] for name in ("unheard", "nowhere", "cuda")} == dict.fromkeys(
        ("unheard", "nowhere", "cuda"), "failed"
    )
    assert "no-such-mode" in row["unheard"]["reason"] and "its process ended" in row["nowhere"]["reason"]
    assert DEV == "CUDA" or "sum.cu runs on CUDA only" in row["cuda"]["reason"]


def test_a_wrong_output_is_no_time(pool: Pool) -> None:
    expected = cases.reference(CASES[3])
    assert expected is not None
    row = Turns(pool).row([TORCH], CASES[3], [2 * v for v in expected])["torch"]
    assert row["status"] == "failed" and row["reason"].startswith("wrong: its output is 0.5 of its size")


@pytest.mark.slow
def test_what_takes_too_long_is_killed_and_started_again() -> None:
    with Pool(DEV, prepare_s=0.01) as impatient:
        row = Turns(impatient).row([TORCH], CASES[0])["torch"]
        assert row["status"] == "failed" and "did not answer" in row["reason"]
        assert not impatient.sides["torch"].alive
        impatient.prepare_s = PATIENCE_S
        assert Turns(impatient).row([TORCH], CASES[0])["torch"]["status"] == "ok"
    assert impatient.sides == {}


def test_a_contender_dies_with_its_parent() -> None:
    """Also where the parent was killed and could not end it."""
    script = (
        "import os; from evaluation.pytorch.turns import Side; "
        f"side = Side('{IN_TORCH}', {{'dev': '{DEV}'}}); side.ask({{'do': 'begin'}}, 600); "
        "print(side._process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    pid = int(done.stdout)
    line = Path(f"/proc/{pid}/cmdline")

    def ended() -> bool:
        with suppress(OSError):
            return IN_TORCH.encode() not in line.read_bytes()
        return True

    assert wait_until(ended), "it lives on"


# -- figures, rows, and their table


def test_figures_are_medians_with_intervals() -> None:
    report = figures.figures({"cold": [3e-6, 1e-6, 2e-6, 5e-6, 4e-6]})
    assert report == {"cold_s": 3e-6, "cold_interval_s": [1e-6, 5e-6], "samples": 5}
    assert figures.speed(0.5, operations=1e12, bytes=2e9) == {"tflop_s": 2.0, "gb_s": 4.0}


@pytest.mark.parametrize("values", [[1.0], [1.0, float("nan")], []])
def test_a_missing_or_infinite_value_is_infinitely_far(values: list[float]) -> None:
    assert figures.distance(values, [1.0, 2.0]) == float("inf")


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_least_bytes_are_those_of_the_tensors(case: dict[str, Any]) -> None:
    step = in_tinygrad.build(case)
    output = in_tinygrad.outputs_of(step.run(**step.inputs))[0]
    whole = sum(t.nbytes() for t in step.inputs.values()) + output.nbytes()
    assert least_bytes(case) == whole - (4 if case["kind"] == "sum" else 0)
    of_matmuls = {"gelu_mlp": 2 * 2 * 12 * 16 * 64, "attention": 2 * 2 * 3 * 20 * 20 * 16}
    assert operations(case) == of_matmuls.get(case["kind"], 0)


def test_finished_rows_are_kept_and_failed_ones_made_again_when_asked(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    rows = Rows(out, "run", settings={"tune": "5s"}, headline=lambda found: {"rows": len(found)})
    rows.add("good", {"contenders": {"a": {"status": "ok"}}})
    rows.add("bad", {"contenders": {"a": {"status": "ok"}, "b": {"status": "failed"}}})
    kept = Rows(out, "run", settings={"tune": "5s"})
    assert not kept.wanted("good") and not kept.wanted("bad") and kept.wanted("new")
    retried = Rows(out, "run", settings={"tune": "5s"}, retry=True)
    assert not retried.wanted("good") and retried.wanted("bad")
    retried.add("other", {"status": "ok"})
    assert "bad" in json.loads(out.read_text())["runs"]["run"]["rows"], "kept until it is made again"
    retried.add("bad", {"status": "failed"})
    assert not retried.wanted("bad"), "once in one call"
    assert Rows(out, "run", again=True).rows == {}
    later = Rows(out, "run", settings={"tune": "9s"})
    later.add("new", {"status": "ok"})
    report = json.loads(out.read_text())["runs"]["run"]["rows"]
    assert {key: row["tune"] for key, row in report.items()} == {"good": "5s", "other": "5s", "bad": "5s", "new": "9s"}
    assert json.loads(out.read_text())["headline"] == {"rows": 2}


def test_tables_report_times_rates_and_reasons() -> None:
    row = {
        "contenders": {
            "kcg": {
                "status": "ok",
                "cold_s": 2e-3,
                "warm_s": 1e-3,
                "gb_s": 50.0,
                "tuned": {
                    "measurements": 3,
                    "search_s": 5.0,
                    "kernels": [
                        {
                            "name": "E_4",
                            "calls": 2,
                            "before_s": 2e-6,
                            "after_s": 1e-6,
                            "bytes": 1000,
                            "schedule": "UPCAST",
                        }
                    ],
                },
            },
            "beam": {"status": "failed", "reason": "a | b"},
        },
        "profiles": {"eager": "aten::mul 1 us\n"},
    }
    assert times_table({"sum": row})[-1] == "| sum | 2.00 ms / 1.00 ms, 50 GB/s | a / b |"
    text = "\n".join(profiles_text("sum", row))
    assert "aten::mul" in text and "| `E_4` | 2 | 2.00 µs | 1.00 µs | 1 | `UPCAST` |" in text


@pytest.mark.parametrize("name", cases.COMPARISONS)
def test_figures_and_cases_are_those_of_the_results(name: str) -> None:
    """The names of committed figures, and the cases that they are of."""
    comparison = cases.COMPARISONS[name]
    report = json.loads((ROOT / "evaluation" / "results" / f"{name}.json").read_text())
    made: dict[str, float] = {}
    for name_of_run, entry in report["runs"].items():
        made |= headline(comparison)(name_of_run)(entry["rows"])
        asked = {row.key: row.case for row in comparison.entries(name_of_run.partition("_")[0])}
        for key, row in entry["rows"].items():
            of_today, then = ({k: v for k, v in one.items() if k != "far"} for one in (asked[key], row["case"]))
            assert of_today == then, key
            errors = [one["error"] for one in row["contenders"].values() if "error" in one]
            assert max(errors, default=0.0) <= asked[key].get("far", figures.FAR[row["case"]["dtype"]]), key
    assert made == report["headline"]


# -- the program


@pytest.mark.slow  # what a script writes, that of attention shows too
def test_rope_script(tmp_path: Path) -> None:
    rows = run("rope", tmp_path / "rope.json", "--contenders", "tinygrad,eager")
    assert set(rows) == {f"{way} {n}" for way in ("forward", "backward") for n in (32, 64)}
    (text,) = tmp_path.glob("*.md")
    assert len(list(tmp_path.glob("*.svg"))) == 4 and "aten::" in text.read_text()
    text.unlink()
    run("rope", tmp_path / "rope.json", "--draw-only")
    assert "aten::" in text.read_text()


def test_sum_script(tmp_path: Path) -> None:
    rows = run("sum_levels", tmp_path / "sum.json", "--contenders", "uops")
    assert set(rows) == {"copy", "sum"} and rows["sum"]["contenders"]["uops"]["gb_s"] > 0
    assert {file.suffix for file in tmp_path.iterdir()} >= {".svg", ".md"}


def test_layers_script_with_kcg(tmp_path: Path) -> None:
    arguments = ("--only", "softmax", "--contenders", "kcg,eager", "--tune", "4s")
    (row,) = run("models", tmp_path / "layers.json", *arguments).values()
    assert row["contenders"]["kcg"]["tuned"]["measurements"] > 0
    assert list((tmp_path / "work").glob("*/RESULT.json"))


@pytest.mark.slow
def test_every_contender_of_rope(tmp_path: Path) -> None:
    rows = run("rope", tmp_path / "rope.json", "--contenders", "tinygrad,BEAM=2,kcg,eager,compile", "--tune", "5s")
    assert all(len(row["contenders"]) == 5 for row in rows.values())
