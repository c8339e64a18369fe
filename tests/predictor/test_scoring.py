"""Predictions of others are scored on the rows and by the figures of the shipped predictor, or refused in one line."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from kcg.data import load
from kcg.dataset.reading import read_export
from kcg.errors import DataError, ExitCode, UsageError
from kcg.predictor.__main__ import main
from kcg.predictor.checkpoint import read
from kcg.predictor.choice import SHIPPED
from kcg.predictor.ensemble import averaged, outputs_by
from kcg.predictor.metrics import floors_of
from kcg.predictor.scoring import IDENTITY, METRICS, Pool, match, pool_of, read_predictions
from kcg.predictor.training_data import load as load_rows
from kcg.predictor.training_data import pool_rows
from kcg.training.fit import judge
from tests.commands import Ended, ended, python
from tests.small_dataset import small_dataset

Rows = dict[str, list[object]]
DOCUMENT = Path(__file__).parents[2] / "docs" / "predictor.md"


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_dataset(tmp_path_factory.mktemp("small"), families={"flux": 6, "softmax": 6})


@pytest.fixture(scope="module")
def pool(small: Path) -> Pool:
    return pool_of(small, "workload")


@pytest.fixture
def rows(pool: Pool) -> Rows:
    """What a competitor who knows every time would write."""
    timed = ~pool.data.failed
    wanted = [row for row, there in zip(pool.rows, timed, strict=True) if there]
    columns: Rows = {name: [row[name] for row in wanted] for name in ("region_id", "schedule_body")}
    return columns | {"predicted_us": [float(v) for v in 1e6 * np.exp(pool.data.log_s[timed])]}


def write(rows: Rows, path: Path) -> Path:
    table = pa.table(rows)
    csv.write_csv(table, path) if path.suffix == ".csv" else parquet.write_table(table, path)
    return path


def scored(rows: Rows, path: Path, pool: Pool) -> dict[str, dict[str, float]]:
    return pool.scored(match(pool, read_predictions(write(rows, path)), path).log_s)


@pytest.mark.parametrize("name", ["mine.parquet", "mine.csv"])
def test_who_knows_the_times_reaches_the_best_of_every_figure(
    rows: Rows, pool: Pool, tmp_path: Path, name: str
) -> None:
    found = scored(rows, tmp_path / name, pool)
    assert [*found] == ["all", "flux"]
    best = dict.fromkeys(METRICS, 1.0) | {"log_error": 0.0, "mape": 0.0}
    assert {metric: found["all"][metric] for metric in METRICS} == pytest.approx(best, abs=1e-6)


def test_what_is_ranked_the_wrong_way_is_scored_so_and_percentages_are_of_the_time(
    rows: Rows, pool: Pool, tmp_path: Path
) -> None:
    times = rows["predicted_us"]
    reversed_ = scored(rows | {"predicted_us": [1 / t for t in times]}, tmp_path / "a.parquet", pool)["all"]  # type: ignore[operator]
    assert reversed_["pairwise"] == 0 and reversed_["kendall_tau"] == -1 and reversed_["top1"] < 0.9
    slow = scored(rows | {"predicted_us": [1.5 * t for t in times]}, tmp_path / "b.parquet", pool)["all"]  # type: ignore[operator]
    assert slow["pairwise"] == 1 and slow["mape"] == pytest.approx(0.5)
    assert slow["log_error"] == pytest.approx(math.log(1.5))


def test_the_pool_and_the_figures_are_those_of_the_evaluation(small: Path, pool: Pool) -> None:
    data, checkpoint = load_rows(small), read(SHIPPED / "cuda.safetensors")
    index = pool_rows(data, "workload", "test")
    assert sorted(data.row[index]) == sorted(pool.data.row)
    found = averaged(outputs_by(checkpoint.nets, data, index))
    expected = judge(data, found, index, floors_of(read_export(small)))
    ours = pool.scored(averaged(outputs_by(checkpoint.nets, pool.data, np.arange(len(pool.data))))["rank"])["all"]
    same = ours.keys() & expected.keys()
    assert {*METRICS} - {"mape"} <= same
    assert {name: ours[name] for name in same} == pytest.approx({name: expected[name] for name in same}, rel=1e-4)


def test_every_row_of_the_test_part_may_be_predicted(rows: Rows, pool: Pool, small: Path, tmp_path: Path) -> None:
    """Failures, retimed rows, and rows that are not judged are in no way."""
    table = load(small).parts("workload", [*IDENTITY])["test"].to_pydict()
    every = table | {"predicted_us": [10.0 + len(body) for body in table["schedule_body"]]}
    both = {name: [*values, *values] for name, values in every.items()}
    path = write(both, tmp_path / "all.parquet")
    matched = match(pool, read_predictions(path), path)
    assert np.isfinite(matched.log_s).all()
    foreign = {name: [*values, "x" if name != "predicted_us" else -1.0] for name, values in rows.items()}
    path = write(foreign, tmp_path / "foreign.parquet")
    assert match(pool, read_predictions(path), path).notes == (
        "1 row of foreign.parquet that are not judged are left out",
    )


def changed(rows: Rows, name: str, value: object) -> Rows:
    return rows | {name: [value, *rows[name][1:]]}


def twice(rows: Rows) -> Rows:
    more = {name: [*values, values[0]] for name, values in rows.items()}
    return more | {"predicted_us": [*rows["predicted_us"], 1.0]}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda rows: {n: v[2:] for n, v in rows.items()}, r"2 rows with no prediction, the first [0-9a-f]{12} \[\["),
        (twice, "1 row with two different predictions, the first"),
        (lambda rows: changed(rows, "predicted_us", math.nan), "1 row with a prediction that is no time above 0"),
        (lambda rows: changed(rows, "predicted_us", math.inf), "1 row with a prediction that is no time above 0"),
        (lambda rows: changed(rows, "predicted_us", None), "1 row with a prediction that is no time above 0"),
        (lambda rows: changed(rows, "predicted_us", -1.0), "1 row with a prediction that is no time above 0"),
        (lambda rows: {n: v for n, v in rows.items() if n != "predicted_us"}, "has no column predicted_us: it needs"),
        (lambda rows: rows | {"predicted_us": ["fast"] * len(rows["region_id"])}, "cannot be read"),
        (lambda rows: {n: v[:0] for n, v in rows.items()}, "rows with no prediction"),
    ],
)
@pytest.mark.parametrize("name", ["wrong.parquet", "wrong.csv"])
def test_what_is_wrong_with_rows_is_one_line(
    rows: Rows, pool: Pool, tmp_path: Path, wrong: object, says: str, name: str
) -> None:
    with pytest.raises(DataError, match=says) as error:
        scored(wrong(rows), tmp_path / name, pool)  # type: ignore[operator]
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"variables": '[["n",5]]'}, "no column variables, in which"),
        ({"target": "another"}, "no column target, in which"),
    ],
)
def test_a_column_in_which_alone_rows_differ_is_asked_for_by_its_name(
    rows: Rows, pool: Pool, tmp_path: Path, other: dict[str, str], says: str
) -> None:
    """One kernel at two values of a variable, or on two targets: two rows of one schedule."""
    first = dict(pool.rows[0])
    two = Pool(pool.export, pool.data, pool.floors, (first | other, first, *pool.rows[2:]))
    with pytest.raises(DataError, match=f"{says} alone rows to be judged differ: add it as the dataset has it"):
        scored(rows, tmp_path / "a.parquet", two)


def example() -> str:
    """The program of docs/predictor.md that writes a file of predictions."""
    (found,) = re.findall(
        r"```python\n(.*?predictions\.parquet.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL
    )
    return str(found)


def test_the_example_writes_all_that_tells_rows_apart() -> None:
    assert all(f'"{name}"' in example() for name in (*IDENTITY, "predicted_us"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["h200", "cpu"])
def test_the_example_is_scored_with_both_datasets(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written = python("-c", example().replace('"h200"', f'"{name}"'), PYTHONPATH=str(DOCUMENT.parents[1]))
    assert written.returncode == 0, written.stderr
    done = run("predictions.parquet", "--dataset", name)
    assert done.returncode == ExitCode.OK and "predictions.parquet" in done.stdout, done.stderr


def test_files_that_are_none_are_one_line(tmp_path: Path) -> None:
    for name, content, says in (("a.parquet", b"PAR1", "cannot be read"), ("b.csv", b"", "cannot be read")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=says):
            read_predictions(tmp_path / name)
    with pytest.raises(UsageError, match="there is no file"):
        read_predictions(tmp_path / "c.csv")


# -- the command


def run(*arguments: str | Path) -> Ended:
    return ended(main, "score", *arguments)


def test_the_command_shows_the_shipped_predictor_beside_them(rows: Rows, small: Path, tmp_path: Path) -> None:
    path = write(rows, tmp_path / "mine.parquet")
    done = run(path, "--dataset", small)
    assert done.returncode == ExitCode.OK, done.stderr
    for expected in ("flux (4)", "all (4)", "mine.parquet", "h200-workload", "Kendall τ", "MAPE"):
        assert expected in done.stdout, done.stdout
    report = json.loads(run(path, "--dataset", small, "--json").stdout)
    assert report["split"] == "workload" and report["scores"]["mine.parquet"]["all"]["pairwise"] == 1
    assert 0.5 < report["scores"]["h200-workload"]["flux"]["pairwise"] < 1


def lines_of(done: Ended) -> Sequence[str]:
    return done.stderr.splitlines()


def test_bad_input_is_one_line(rows: Rows, small: Path, tmp_path: Path) -> None:
    path = write(rows, tmp_path / "mine.parquet")
    for arguments, says in (
        ((tmp_path / "absent.csv",), "there is no file"),
        ((path, "--split", "family"), "unknown split 'family'"),
        ((path, "--dataset", "h20"), "did you mean h200"),
        ((path, "--dataset", "owner/name@main"), "no pinned commit"),
        ((), "missing argument 'file'; --help"),
    ):
        done = run(*arguments)
        assert done.returncode == ExitCode.USAGE
        (line,) = lines_of(done)
        assert line.startswith("kcg: ") and says in line.lower()


def test_a_predictor_that_saw_the_rows_is_not_shown(rows: Rows, small: Path, tmp_path: Path) -> None:
    pool = pool_of(small, "kernel")
    columns: Rows = {name: [row[name] for row in pool.rows] for name in ("region_id", "schedule_body")}
    path = write(columns | {"predicted_us": [1.0] * len(pool.rows)}, tmp_path / "mine.csv")
    done = run(path, "--dataset", small, "--split", "kernel", "--json")
    assert lines_of(done) == ["kcg: h200-workload, which comes with kcg, was trained on a part of these rows"]
    assert [*json.loads(done.stdout)["scores"]] == ["mine.csv"]
