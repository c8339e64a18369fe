"""Programs of the raw space: that each is as likely, that the rules named are those of legality, and that no result is
lost or counted twice. What runs is of a CPU: tinygrad's own schedules in the place of tile programs."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tinygrad import Tensor
from typer.testing import CliRunner

from evaluation.dataset.wrong import judging, outcomes, raw_programs, summary
from evaluation.dataset.wrong.__main__ import application
from evaluation.dataset.wrong.compiled_ahead import Ahead, Compilers, compile_all, tools
from evaluation.dataset.wrong.judged_program import CHECKED, Case, Over, Settings
from evaluation.dataset.wrong.judging import Judging
from evaluation.dataset.wrong.outcomes import Results, Row, read_results
from evaluation.dataset.wrong.raw_programs import FINALIST, LEGAL, RAW, Drawn, Limits, Place, Programs, Wanted
from evaluation.dataset.wrong.raw_space import TEXT, Product, Raw, draw_of, is_written, raw_spaces, why_not
from kcg.errors import DeviceError, UsageError
from kcg.kernel.codec import kernel_of
from kcg.kernel.kinds import baseline_of
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.tile.legal import FIELDS, is_legal
from kcg.kernel.tile.parameters import TileParameters
from kcg.measure import child
from kcg.measure.service import MeasureService
from kcg.types import Region, Workload, WorkloadCall
from tests.kernels import empty, kernels_of
from tests.known_targets import KNOWN_TARGETS

TARGET = KNOWN_TARGETS["sm_90"]


def one_kernel(tensor: Tensor) -> Region:
    return Region((kernel_of(kernels_of(tensor)[-1]),))


def plus(number: int) -> Region:
    return one_kernel(empty(28) + number)


BUILT = {
    "affine": lambda: empty(64) * 3 + 1,
    "softmax": lambda: empty(8, 128).softmax(),
    "matmul": lambda: empty(64, 96, dtype="float16") @ empty(96, 64, dtype="float16"),
}

# ---- the sampler


def tiny() -> Raw:
    one = {"tile": ((1,), (2,)), "num_warps": (1, 2, 4), "fast_math": (True, False)}
    values = tuple(one.get(name, (getattr(TileParameters("elementwise", (), ()), name),)) for name in FIELDS)
    return Raw("elementwise", tuple(Product("elementwise", axes, values) for axes in (((0,),), ((1,),))))


def test_each_number_is_another_program_of_the_whole_product() -> None:
    space = tiny()
    found = [space.program(number) for number in range(space.count)]
    axes, tiles, warps, maths = (((0,),), ((1,),)), ((1,), (2,)), (1, 2, 4), (True, False)
    wanted = {
        TileParameters("elementwise", a, t, num_warps=w, fast_math=m)
        for a, t, w, m in itertools.product(axes, tiles, warps, maths)
    }
    assert space.count == len(found) == len(wanted) == 24 and set(found) == wanted
    for number in (-1, 24):
        with pytest.raises(IndexError):
            space.program(number)


class InOrder(Random):
    """Draws every number once, and says below which."""

    def __init__(self) -> None:
        super().__init__(0)
        self.below: set[int] = set()
        self._next = itertools.count()

    def randrange(self, start: int, *_: Any) -> int:  # type: ignore[override]
        self.below.add(start)
        return next(self._next) % start


def test_a_draw_takes_one_number_below_the_size_of_the_space_and_all_are_drawn_once() -> None:
    kernel = read_region(one_kernel(BUILT["affine"]()))
    (space,) = raw_spaces(kernel, TARGET, Random(0))
    rng = InOrder()
    drawn = draw_of(kernel, TARGET, [space], 10 * space.count, rng)
    everything = [space.program(number) for number in range(space.count)]
    assert rng.below == {space.count}
    assert len(drawn.programs) + sum(drawn.without_text.values()) == space.count
    assert [p for p, _ in drawn.programs] == [p for p in everything if is_written(why_not(kernel, TARGET, p))]


@pytest.mark.parametrize("name", BUILT)
def test_the_rules_named_are_those_of_legality(name: str) -> None:
    kernel = read_region(one_kernel(BUILT[name]()))
    rng = Random(1)
    spaces = raw_spaces(kernel, TARGET, rng)
    programs = [space.program(rng.randrange(space.count)) for space in spaces for _ in range(60)]
    for p in programs:
        assert (not why_not(kernel, TARGET, p)) == is_legal(kernel, TARGET, p), p
    assert any(why_not(kernel, TARGET, p) for p in programs)


def test_the_raw_space_holds_the_legal_programs() -> None:
    kernel = read_region(one_kernel(BUILT["matmul"]()))
    spaces = {space.form: space for space in raw_spaces(kernel, TARGET, Random(0))}
    for p in raw_programs._legal_of(kernel, TARGET, 12, Random(3)):
        values = next(one.values for one in spaces[p.form].products if one.axes == p.axes)
        assert all(getattr(p, name) in known for name, known in zip(FIELDS, values, strict=True)), p


def test_regions_are_drawn_over_families_evenly_and_the_file_holds_all(tmp_path: Path) -> None:
    many = tuple(WorkloadCall(one_kernel(empty(8 + n) + 1), 1) for n in range(6))
    few = (WorkloadCall(one_kernel(BUILT["softmax"]()), 1), WorkloadCall(one_kernel(BUILT["matmul"]()), 1))
    large = (WorkloadCall(one_kernel(empty(1 << 26) + 1), 1),)
    workloads = [Workload("many", "x", many), Workload("few", "x", few), Workload("large", "x", large)]
    found = raw_programs.draw(workloads, "h200", Wanted(regions=4, programs=20, legal=4, seed=2), Limits())
    families = [place.family for place in found.places]
    assert sorted(families) == ["few", "few", "many", "many"]
    assert sum(one.drawn == RAW for one in found.programs) == 20 and {one.drawn for one in found.programs} == {
        RAW,
        LEGAL,
    }
    assert all(one.legal for one in found.programs if one.drawn == LEGAL)
    assert not any(rule.startswith(TEXT) for one in found.programs for rule in one.rules)
    assert found == raw_programs.draw(workloads, "h200", Wanted(regions=4, programs=20, legal=4, seed=2), Limits())
    raw_programs.write(tmp_path / "raw.json", found)
    assert raw_programs.read(tmp_path / "raw.json") == found
    rows = [{"region": found.places[0].region.id, "body": found.programs[0].body}]
    (tmp_path / "finalists.json").write_text(json.dumps(rows * 2))
    finalists = raw_programs.read_finalists(tmp_path / "finalists.json", found.places, None)
    assert [one.body for one in finalists.programs] == [found.programs[0].body]
    with pytest.raises(UsageError, match="no file of raw programs"):
        raw_programs.read(tmp_path / "finalists.json")


# ---- the results


def test_a_cut_loses_no_row_and_no_program_has_two(tmp_path: Path) -> None:
    path, about = tmp_path / "map.json", {"programs": "x"}
    with Results(path, about) as results:
        assert results.add({"key": "a", "outcome": "ok"}) and results.add({"key": "b", "outcome": "nan"})
        assert not results.add({"key": "a", "outcome": "wrong"})
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"key": "c", "outc')  # cut off while it was written
    assert [row["key"] for row in read_results(path)[1]] == ["a", "b"]
    with Results(path, about) as results:
        assert {key: row["outcome"] for key, row in results.rows.items()} == {"a": "ok", "b": "nan"}
        assert results.add({"key": "c", "outcome": "ok"}) and not results.add({"key": "b", "outcome": "ok"})
    head, rows = read_results(path)
    assert head == about and [row["key"] for row in rows] == ["a", "b", "c"]
    with pytest.raises(UsageError, match="other programs or settings"):
        Results(path, {"programs": "y"})


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("element 5 of buffer 0 is nan, not 0.25 (seed 0)", outcomes.NAN),
        ("element 5 of buffer 0 is 3, not 0.25 (seed 0)", outcomes.WRONG),
        ("never wrote element 5 of buffer 0 and 3 others", outcomes.WRONG),
        ("two runs differ at element 7 of buffer 0", outcomes.DIFFERS),
        ("timed run 4 left something else in buffer 0 than the runs before it", outcomes.DIFFERS),
        ("of 200 launches one, beside another stream, left another element 3 of buffer 0", outcomes.DIFFERS),
        ("run 5 differs from the others in buffer 0", outcomes.DIFFERS),
        ("wrote outside buffer 0", outcomes.OUTSIDE),
    ],
)
def test_what_is_wrong_has_a_word(reason: str, word: str) -> None:
    assert outcomes.of_wrong(reason) == word


# ---- the summary


def row(region: int, outcome: str, seconds: float = 0.0, *, legal: bool = False, drawn: str = RAW) -> Row:
    number = next(_numbers)
    found = {"key": str(number), "region": f"r{region}", "workload": "w/x", "form": "rows", "body": "{}", "family": "w"}
    rules = [] if legal else ["room: stages"]
    timed = {"seconds": seconds} if seconds else {}
    return {**found, "drawn": drawn, "rules": rules, "outcome": outcome, "launches": 9, "asked": 10, **timed}


_numbers = itertools.count()


def test_shares_are_of_what_was_launched_and_intervals_of_regions() -> None:
    rows = [row(r, "wrong" if r < 5 else "ok", 1e-3) for r in range(10) for _ in range(20)]
    rows += [row(r, "compile_error") for r in range(10)] + [row(0, "class_cut"), row(1, "unjudged")]
    rows += [row(r, "ok", 1e-3, legal=True, drawn=LEGAL) for r in range(10)]
    found = summary.figures_of(rows)
    raw = found["wrong"]["raw"]
    assert (raw["share"], raw["count"], raw["of"], raw["regions"]) == (0.5, 100, 200, 10)
    # programs of a region are alike: as wide as of 10 draws, not of 200
    assert raw["low"] <= 0.2 and raw["high"] >= 0.8
    assert found["wrong"]["legal"] == {"count": 0, "of": 10, "regions": 10, "share": 0, "low": 0, "high": 0}
    assert found["wrong_excluded"]["share"] == 1 and found["short_of_launches"] == 110
    assert "share" not in found["wrong"]["finalists"]
    assert found["outcomes"]["raw, not legal"] == {
        "ok": 100,
        "wrong": 100,
        "compile_error": 10,
        "unjudged": 1,
        "class_cut": 1,
    }
    headline = summary.headline_of(found)
    assert headline["wrong_share_raw"] == 0.5 and headline["wrong_share_legal"] == 0
    assert "wrong_share_finalists" not in headline and "| all | raw, not legal | " in summary.text_of(found)
    assert summary.listing(rows, 3).count("\n- ") == 3


def invoke(*arguments: object) -> None:
    found = CliRunner().invoke(application, ["summary", *map(str, arguments)])
    assert found.exit_code == 0, found.output


def test_an_entry_of_another_name_leaves_the_figures_as_they_are(tmp_path: Path) -> None:
    rows = [row(r, "ok", 1e-3, legal=True, drawn=FINALIST) for r in range(3)]
    (results := tmp_path / "finalists.json").write_text(
        "".join(f"{json.dumps(one)}\n" for one in [{"tools": {}}, *rows])
    )
    figures_at = tmp_path / "figures.json"
    invoke(results, "--out", figures_at)
    headline = json.loads(figures_at.read_text())["headline"]
    invoke(results, "--run", "others", "--out", figures_at)
    found = json.loads(figures_at.read_text())
    assert found["headline"] == headline and set(found["runs"]) == {"wrong programs", "others"}


def test_what_another_compiler_made_of_the_same_programs() -> None:
    rows = [row(1, "ok"), row(1, "wrong"), row(2, "differs"), row(3, "ok")]
    others = [{**rows[0], "outcome": "ok"}, {**rows[1], "outcome": "wrong"}, {**rows[2], "outcome": "ok"}, row(4, "ok")]
    found = summary.by_another_compiler(rows, others)
    assert found["programs"] == 3 and found["outcomes"] == {"ok, ok": 1, "wrong, wrong": 1, "differs, ok": 1}
    assert found["right_by_one"] == ["r2 {}: differs, ok"]


def test_the_fastest_of_a_region_may_be_wrong() -> None:
    rows = [row(1, "wrong", 1e-5), row(1, "ok", 2e-5), row(2, "ok", 1e-5), row(2, "nan", 3e-5), row(2, "timeout")]
    rows += [row(3, "ok", 1e-5), row(4, "wrong", 1e-5), row(4, "differs", 1e-5)]  # alone; and none is right
    figure = summary.figures_of(rows)["fastest_wrong"]["raw"]
    assert (figure["count"], figure["of"], figure["share"]) == (1, 2, 0.5)
    fastest = summary.fastest_of(rows)
    assert {name: one["outcome"] for name, one in fastest.items()} == {"r1": "wrong", "r2": "ok"}


# ---- judging, on a CPU


NO_CODE = b"\x0f\x0b"  # what a processor takes for no instruction


class Swapped(MeasureService):
    """Compiles what is 28 numbers plus 5 as if it were plus 6; and of plus 7 programs that end their process."""

    compiled_here = 0

    def beside(self, function: Callable[..., Any], *args: Any, timeout_s: float, patient: bool = False) -> Future[Any]:
        self.compiled_here += function is child.compile_job
        if function is child.compile_job and args[0].region == plus(5):
            args = (replace(args[0], region=plus(6)),)
        if function is child.compile_job and args[0].region == plus(7):
            own = replace(args[0], schedule=baseline_of(plus(7), self.target))
            found = super().beside(function, own, timeout_s=60.0).result()
            broken, made = replace(found.compiled, binary=NO_CODE * (8 + self.compiled_here)), Future[Any]()
            made.set_result(replace(found, compiled=broken))
            return made
        return super().beside(function, *args, timeout_s=60.0, patient=patient)


@pytest.fixture
def swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "MeasureService", Swapped)


def places_and_programs(target: Any) -> Programs:
    places = tuple(Place(plus(number), (), "plus", "plus/x") for number in (3, 5))
    found = []
    for place in places:
        own = baseline_of(place.region, target)
        for drawn, rules in ((RAW, ("room: stages",)), (LEGAL, ())):
            found.append(Drawn(place.key, own.body, "rows", drawn, rules, str(own.kind)))
    return Programs(places, tuple(found))


def test_programs_are_judged_once_and_what_is_wrong_is_looked_at(tmp_path: Path, swapped: None) -> None:
    with MeasureService("CPU:X86", run_id="looks", compile_workers=1) as service:
        programs = places_and_programs(service.target)
    settings, path, said = Settings(launches=40, stress_s=5.0, children=2), tmp_path / "map.json", list[str]()
    about = {"settings": asdict(settings)}
    first = replace(programs, programs=programs.programs[:3])
    with Results(path, about) as results, Judging("CPU:X86", first, results, settings) as judging:
        assert judging.run(None, said.append) == 0 and not judging.errors and judging.judged == 3
    with Results(path, about) as results, Judging("CPU:X86", programs, results, settings) as judging:
        assert judging.run(None, said.append) == 0 and not judging.errors and judging.judged == 1
    rows = {(one["region"], one["drawn"]): one for one in read_results(path)[1]}
    assert len(rows) == 4
    for drawn in (RAW, LEGAL):
        right, wrong = rows[plus(3).id, drawn], rows[plus(5).id, drawn]
        assert right["outcome"] == "ok" and right["launches"] == right["asked"] == 40 and right["verified"] == ""
        assert wrong["outcome"] == "wrong" and wrong["stage"] == "check" and "not" in wrong["reason"]
        assert wrong["look"]["bad"] == 1 and wrong["look"]["nan"] == wrong["look"]["unwritten"] == 0
        assert wrong["seconds"] > 0 and wrong["look"]["distance"] > 0
    text = summary.text_of(summary.figures_of(list(rows.values())))
    assert "the fastest of a region is wrong: raw: 0 of 0" in text


def test_what_was_compiled_ahead_is_judged_and_what_does_not_compile_is_told(tmp_path: Path, swapped: None) -> None:
    with MeasureService("CPU:X86", run_id="looks", compile_workers=1) as service:
        target = service.target
    programs, path, said = places_and_programs(target), tmp_path / "ahead.programs", list[str]()
    broken = replace(programs.programs[0], body="[none]")
    programs = replace(programs, programs=(*programs.programs, broken))
    assert compile_all(programs, target, path, Compilers(1), said.append) == 0
    assert compile_all(programs, target, path, Compilers(1, budget_s=0.0), said.append) == 0  # all are there
    settings = Settings(launches=20, children=1, verify=CHECKED)
    with Ahead(path) as ahead, Results(tmp_path / "map.json", {}) as results:
        assert ahead.tools == tools()
        with Judging("CPU:X86", programs, results, settings, ahead) as judging:
            assert judging.run(None, said.append) == 0 and not judging.errors
            assert not judging.services[0].compiled_here
        found = Counter(one["outcome"] for one in results.rows.values())
    assert found == {"ok": 4, "compile_error": 1}  # none was swapped


def test_a_class_that_loses_children_is_run_no_more(tmp_path: Path, swapped: None) -> None:
    with MeasureService("CPU:X86", run_id="looks", compile_workers=1) as service:
        programs = places_and_programs(service.target)
    settings = Settings(launches=20, children=1, verify=CHECKED, deaths=1)
    with Results(tmp_path / "map.json", {}) as results:
        lost = {"form": "rows", "rules": ["room: stages"], "outcome": "fault", "children_lost": 1}
        results.add({"key": "before", **lost})
        with Judging("CPU:X86", programs, results, settings) as judging:
            assert judging.run(None, lambda line: None) == 0
        found = {(one["region"], one["drawn"]): one["outcome"] for key, one in results.rows.items() if key != "before"}
    assert found[plus(3).id, RAW] == found[plus(5).id, RAW] == "class_cut"
    assert found[plus(3).id, LEGAL] == "ok" and found[plus(5).id, LEGAL] == "wrong"


def test_faults_are_counted_until_their_class_is_cut(tmp_path: Path, swapped: None) -> None:
    with MeasureService("CPU:X86", run_id="looks", compile_workers=1) as service:
        own = baseline_of(plus(7), service.target)
    bad, good = Place(plus(7), (), "plus", "plus/x"), Place(plus(3), (), "plus", "plus/x")
    broken = [Drawn(bad.key, f"{n}", "rows", RAW, ("room: stages",), str(own.kind)) for n in range(4)]
    right = Drawn(good.key, baseline_of(plus(3), service.target).body, "rows", RAW, ("room: warps",), str(own.kind))
    programs = Programs((bad, good), (*broken, right))
    settings = Settings(launches=20, children=1, verify=CHECKED, deaths=2)
    with Results(tmp_path / "map.json", {}) as results:
        with Judging("CPU:X86", programs, results, settings) as judging:
            assert judging.run(None, lambda line: None) == 0 and not judging.errors
        rows = [results.rows[one.key] for one in programs.programs]
    assert [one["outcome"] for one in rows] == ["fault", "fault", "class_cut", "class_cut", "ok"]
    assert [one.get("children_lost", 0) > 0 for one in rows] == [True, True, False, False, False]
    assert "SIGILL" in rows[0]["reason"]


def test_what_mostly_takes_too_long_to_compile_is_compiled_no_more(tmp_path: Path, swapped: None) -> None:
    slow = {"form": "rows", "rules": ["room: stages", "room: warps"], "outcome": "compile_timeout"}
    other = {"form": "rows", "rules": ["room: warps"], "outcome": "ok"}
    with MeasureService("CPU:X86", run_id="looks", compile_workers=1) as service:
        programs = places_and_programs(service.target)
    with Results(tmp_path / "map.json", {}) as results:
        for number in range(3):
            results.add({"key": f"slow {number}", **slow})
            results.add({"key": f"other {number}", **other})
        with Judging("CPU:X86", programs, results, Settings(children=1, slow=3)) as judging:
            found = [judging._is_slow(("rows", rule)) for rule in ("room: stages", "room: warps", "room: queries")]
            assert found == [True, False, False] and not judging._is_slow(("stream", "room: stages"))
            assert [judging._is_cut(one) for one in programs.programs] == [not one.legal for one in programs.programs]


@pytest.mark.parametrize("error", [DeviceError("gone"), ValueError("a bug"), Over()])
def test_what_ends_a_child_ends_the_run_with_what_was_judged(
    tmp_path: Path, swapped: None, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    with MeasureService("CPU:X86", run_id="looks", compile_workers=1) as service:
        programs = places_and_programs(service.target)
    judged = iter([{"outcome": "ok"}])

    def judge(case: Case) -> Row:
        if (row := next(judged, None)) is None:
            raise error
        return row

    monkeypatch.setattr(Case, "judged", judge)
    settings = Settings(children=1, verify=CHECKED)
    with Results(tmp_path / "map.json", {}) as results, Judging("CPU:X86", programs, results, settings) as judging:
        assert judging.run(None, lambda line: None) == 2 and len(judging.errors) == 1  # both of one binary are known
    assert [row["outcome"] for row in read_results(tmp_path / "map.json")[1]] == ["ok", "ok"]


def test_when_time_is_over_nothing_is_written_of_what_was_not_judged(tmp_path: Path, swapped: None) -> None:
    with MeasureService("CPU:X86", run_id="looks", compile_workers=1) as service:
        programs = places_and_programs(service.target)
    with Results(tmp_path / "map.json", {}) as results, Judging("CPU:X86", programs, results, Settings()) as judging:
        assert judging.run(0.0, lambda line: None) == 4 and not results.rows and not judging.errors
