"""Pictures and tables of comparisons say what their rows say."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from evaluation.pytorch import models, rope, sum_levels
from evaluation.pytorch.cases import COMPARISONS
from evaluation.pytorch.comparing import Write, redraw
from evaluation.pytorch.plots import lines_svg, rate_axis, ratio_axis, seconds_axis
from kcg.errors import UsageError

RESULTS = Path(__file__).parents[3] / "evaluation" / "results"
WRITERS = {name: comparison.write for name, comparison in COMPARISONS.items()}
LATE = "it did not answer in 300 s: prepare"


def took(cold_s: float, **more: float) -> dict[str, Any]:
    return {"status": "ok", "cold_s": cold_s, "cold_interval_s": [0.9 * cold_s, 1.1 * cold_s], **more}


def lost(reason: str) -> dict[str, Any]:
    return {"status": "failed", "reason": reason}


def drawn(file: Path) -> ElementTree.Element:
    return ElementTree.fromstring(file.read_text())


def all_of(picture: ElementTree.Element, tag: str) -> list[ElementTree.Element]:
    return [element for element in picture.iter() if element.tag.endswith(f"}}{tag}")]


def texts(picture: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in all_of(picture, "text")]


def widths(picture: ElementTree.Element) -> list[float]:
    """Of the bars, from the top; the first rectangle is the ground."""
    return [float(bar.attrib["width"]) for bar in all_of(picture, "rect")[1:]]


def first_cells(table: Path) -> list[str]:
    return re.findall(r"^\| ([^|]+) \|", table.read_text(), re.MULTILINE)[1:]


# -- lines


def test_the_picture_is_an_image_with_a_line_for_each_contender() -> None:
    curves = {"kcg & co": [(32, 1e-6, 1e-6, 1e-6), (64, 2e-6, 1e-6, 3e-6)]}
    picture = ElementTree.fromstring(lines_svg("RoPE <forward>", "tokens", curves, seconds_axis, ["one & all"]))
    (line,) = all_of(picture, "polyline")
    assert len(line.attrib["points"].split()) == 2
    assert {"kcg & co", "RoPE <forward>", "1 µs", "10 µs", "32", "64", "one & all"} <= set(texts(picture))


def test_sizes_that_are_near_each_other_do_not_share_a_line() -> None:
    curves = {"kcg": [(size, 1.0, 1.0, 1.0) for size in (512.0, 1024.0, 4096.0, 4608.0, 8192.0)]}
    picture = ElementTree.fromstring(lines_svg("", "tokens", curves, rate_axis, []))
    height = {element.text: float(element.attrib["y"]) for element in all_of(picture, "text")}
    assert height["4,608"] > height["4,096"] == height["8,192"] == height["512"]


def test_rope_is_drawn_as_time_and_as_rate_and_its_table_goes_by_length(tmp_path: Path) -> None:
    rows = {
        f"{way} {tokens}": {
            "case": {"tokens": tokens, "backward": way == "backward"},
            "contenders": {"triton": took(tokens * 1e-8, gb_s=1000.0), "kcg": took(tokens * 1e-8, gb_s=tokens / 8)},
        }
        for way in ("backward", "forward")
        for tokens in (16384, 512, 2048)
    }
    rows["forward 2048"]["contenders"]["kcg"] = lost(LATE)
    rope.write(rows, tmp_path / "rope.json", "mini")
    assert first_cells(tmp_path / "rope_mini.md") == [
        f"{way} {tokens}" for way in ("forward", "backward") for tokens in (512, 2048, 16384)
    ]
    of_kcg, of_triton = all_of(drawn(tmp_path / "rope_forward_gb_s_mini.svg"), "polyline")
    heights = [float(point.split(",")[1]) for point in of_triton.attrib["points"].split()]
    assert len(set(heights)) == 1 and len(of_kcg.attrib["points"].split()) == 2
    for kind in ("forward", "forward_gb_s"):
        assert f"kcg at 2,048: {LATE}" in texts(drawn(tmp_path / f"rope_{kind}_mini.svg"))
        assert f"](rope_{kind}_mini.svg)" in (tmp_path / "rope_mini.md").read_text()
    assert not any(LATE in wanted for wanted in texts(drawn(tmp_path / "rope_backward_mini.svg")))


def test_a_rate_has_the_interval_of_its_time(tmp_path: Path) -> None:
    row = {"case": {"tokens": 64, "backward": False}, "contenders": {"kcg": took(1e-6, gb_s=990.0)}}
    rope.write({"forward 64": row}, tmp_path / "rope.json", "mini")
    picture = drawn(tmp_path / "rope_forward_gb_s_mini.svg")
    ticks = {element.text: float(element.attrib["y"]) - 4 for element in all_of(picture, "text")}
    (band,) = all_of(picture, "polygon")
    heights = {float(point.split(",")[1]) for point in band.attrib["points"].split()}
    values = sorted(1000 * (ticks["0"] - height) / (ticks["0"] - ticks["1,000"]) for height in heights)
    assert values == pytest.approx([900, 1100], abs=2)


# -- bars


def sums(copied: dict[str, Any]) -> dict[str, Any]:
    levels = {
        "torch": took(2e-4, gb_s=4000.0),
        "cuda": lost("sum.cu runs on CUDA only"),
        "tinygrad": took(4e-4, gb_s=2000.0),
        "kcg": took(1e-3, gb_s=800.0),
    }
    return {"sum": {"contenders": levels}, "copy": {"contenders": {"torch": copied}}}


def test_levels_of_the_sum_are_bars_of_their_rates_beside_the_copy(tmp_path: Path) -> None:
    sum_levels.write(sums(took(1e-3, gb_s=3000.0)), tmp_path / "sum.json", "mini")
    picture = drawn(tmp_path / "sum_mini.svg")
    of_tinygrad, of_kcg, of_torch = widths(picture)
    assert (of_tinygrad, of_torch) == pytest.approx((2.5 * of_kcg, 5 * of_kcg), rel=0.01)
    wanted = texts(picture)
    names = [name for name in wanted if name in ("tinygrad", "kcg", "CUDA by hand", "PyTorch")]
    assert names == ["tinygrad", "kcg", "CUDA by hand", "PyTorch"]
    assert {"sum.cu runs on CUDA only", "800 GB/s, 1.00 ms", "copy: 3,000 GB/s"} <= set(wanted)
    (mark,) = [line for line in all_of(picture, "line") if "stroke-dasharray" in line.attrib]
    begin = min(float(bar.attrib["x"]) for bar in all_of(picture, "rect")[1:])
    assert float(mark.attrib["x1"]) - begin == pytest.approx(0.75 * of_torch, rel=0.01)
    assert len(all_of(picture, "path")) == 3  # an interval each


def test_a_copy_without_a_time_is_reported(tmp_path: Path) -> None:
    sum_levels.write(sums(lost(LATE)), tmp_path / "sum.json", "mini")
    picture = drawn(tmp_path / "sum_mini.svg")
    assert f"copy: {LATE}" in texts(picture)
    assert not any("stroke-dasharray" in line.attrib for line in all_of(picture, "line"))


def test_layers_are_bars_of_speed_over_hand_coded(tmp_path: Path) -> None:
    rows = {
        models.LLAMA: {"case": {"kind": "family", "name": "llama"}, "contenders": {
            "tinygrad": lost("wrong"), "kcg": took(1e-3),
        }},
        "softmax 32768x1024": {"case": {"kind": "softmax", "rows": 32768, "width": 1024}, "contenders": {
            "tinygrad": took(4e-3), "BEAM=2": lost(LATE), "kcg": took(2e-3), "eager": took(1e-3), "compile": took(8e-3),
        }},
        "softmax 4096x4096": {"case": {"kind": "softmax", "rows": 4096, "width": 4096}, "contenders": {
            "tinygrad": took(1e-6),
        }},
    }  # fmt: skip
    models.write(rows, tmp_path / "layers.json", "mini")
    picture = drawn(tmp_path / "layers_mini.svg")
    of_kcg, of_eager, of_compile = widths(picture)
    assert of_eager == pytest.approx(2 * of_kcg, rel=0.01) and of_compile == pytest.approx(of_kcg, rel=0.01)
    begin, of_eager_x, of_compile_x = (float(bar.attrib["x"]) for bar in all_of(picture, "rect")[1:])
    assert of_eager_x == begin and of_compile_x + of_compile == pytest.approx(begin, abs=0.2)  # slower: to the left
    wanted = texts(picture)
    assert {"2.00×, 2.00 ms", "4.00×, 1.00 ms", "0.50×, 8.00 ms", "tinygrad, BEAM=2", LATE, "1.00 ms"} <= set(wanted)
    heads = [text for text in wanted if "hand-coded: " in text]
    assert heads == [
        "softmax 4096x4096; tinygrad hand-coded: 1.00 µs",
        "softmax 32768x1024; tinygrad hand-coded: 4.00 ms",
        "Llama 3.2 1B token; tinygrad hand-coded: wrong",
    ]
    assert first_cells(tmp_path / "layers_mini.md") == ["softmax 4096x4096", "softmax 32768x1024", models.LLAMA]


# -- axes


@pytest.mark.parametrize(
    ("axis", "values"),
    [
        (seconds_axis, [3e-6, 2e-3]),
        (seconds_axis, [1e-3]),
        (seconds_axis, []),
        (rate_axis, [12.0, 4361.0]),
        (rate_axis, [0.3]),
        (rate_axis, []),
        (ratio_axis, [0.4, 85.0]),
        (ratio_axis, [3.0]),
        (ratio_axis, []),
    ],
)
def test_an_axis_holds_its_values_and_its_ticks(axis: Any, values: list[float]) -> None:
    made = axis(values)
    ticks = [value for value, _ in made.ticks]
    assert len(ticks) >= 2 and ticks == sorted(ticks)
    assert [made.place(ticks[0]), made.place(ticks[-1])] == pytest.approx([0, 1])
    assert all(0 <= made.place(value) <= 1 and math.isfinite(made.place(value)) for value in values)


def test_ticks_are_round_numbers_with_their_unit() -> None:
    assert [wanted for _, wanted in seconds_axis([2e-8, 5e-6]).ticks] == ["10 ns", "100 ns", "1 µs", "10 µs"]
    assert [wanted for _, wanted in rate_axis([4361.0]).ticks] == [f"{n},000" if n else "0" for n in range(6)]
    assert [wanted for _, wanted in ratio_axis([0.6, 11.0]).ticks] == ["0.5×", "1×", "2×", "5×", "10×", "20×"]


# -- what is committed


@pytest.mark.parametrize("name", WRITERS)
def test_committed_pictures_and_tables_are_those_of_their_rows(name: str, tmp_path: Path) -> None:
    for run, entry in json.loads((RESULTS / f"{name}.json").read_text())["runs"].items():
        if not (RESULTS / f"{name}_{run}.md").exists():
            continue
        WRITERS[name](entry["rows"], tmp_path / f"{name}.json", run)
        for file in tmp_path.iterdir():
            assert file.read_text() == (RESULTS / file.name).read_text(), f"{file.name}: run it with --draw-only"


def test_a_run_is_drawn_again_without_a_device(tmp_path: Path) -> None:
    out, write = tmp_path / "sum.json", sum_levels.write
    out.write_text(json.dumps({"headline": {}, "runs": {"full_cpu_x86": {"rows": sums(lost(LATE))}}}))
    redraw(write, out, "full", "CPU:X86")
    assert {file.name for file in tmp_path.iterdir()} == {"sum.json", "sum_full_cpu_x86.md", "sum_full_cpu_x86.svg"}


@pytest.mark.parametrize(
    ("device", "file", "wanted"),
    [
        ("auto", "rope", "say --device"),
        ("cuda", "rope", "unknown run 'mini_cuda'.*full_cuda"),
        ("cuda", "no", "unknown run 'mini_cuda'"),
    ],
)
def test_without_rows_nothing_is_drawn(device: str, file: str, wanted: str) -> None:
    write: Write = WRITERS["rope"]
    with pytest.raises(UsageError, match=wanted):
        redraw(write, RESULTS / f"{file}.json", "mini", device)
