"""What runs measured goes into a dataset: with why it was chosen, for training only, and once."""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path

import pytest

import kcg.data
from kcg.dataset import __main__ as command
from kcg.dataset.check import verify
from kcg.dataset.choices import CLIP, at_least_s, is_chosen, weight_of
from kcg.dataset.export import add, export, read_export
from kcg.dataset.journal import Chosen, Journal, Run
from kcg.dataset.splits import TRAIN, part_of_row
from kcg.dataset.stats import stats
from kcg.errors import JournalError, UsageError
from kcg.measure.protocol import PROTOCOL
from kcg.search import uniform
from kcg.types import Job, JobKind, JobOutcome, Status
from tests.commands import ended
from tests.dataset.test_journal import fill, measurement
from tests.optimize_run import optimized


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small run, in which every third measurement of a search is drawn."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uniform, "EVERY", 3)
        done = optimized(
            "softmax", "--preset", "mini", "--device", "CPU", "--measurements", "40", "--seed", "7",
            "--report", folder, "--quiet",
        )  # fmt: skip
    assert (folder / "journal.sqlite").is_file(), done
    return folder


def rows(path: Path) -> list[tuple[str, Chosen, bool]]:
    with Journal.open(path, read_only=True) as journal:
        return [(r.measurement.sampler, r.chosen, r.measurement.early_stop) for r in journal.records(PROTOCOL)]


def test_every_row_of_a_run_says_why_it_was_measured(run: Path) -> None:
    found = rows(run / "journal.sqlite")
    by_sampler = Counter(sampler for sampler, _, _ in found)
    assert by_sampler["hand-coded"] == 16 and by_sampler["mcts"] >= 10
    assert 1 <= by_sampler["uniform"] <= 10, "a third of 24, of the searches that came so far"
    for sampler, why, early in found:
        if sampler == "hand-coded":
            assert why == Chosen(probability=1.0)
        elif sampler == "uniform":
            assert why.pool.startswith("legal:") and why.expected is not None
            assert why.probability == pytest.approx(1 / int(why.pool.partition(":")[2]), rel=0.1)
        elif early:
            assert why.pool.startswith(("candidates:", "similar kernels:")) and why.probability == 1.0
            assert why.expected is not None or why.pool.startswith("similar")
        else:
            assert why == Chosen("found", probability=1.0), "what is judged"


def test_a_run_is_added_once_with_its_jobs_and_read_back(run: Path, tmp_path: Path) -> None:
    out, folder = tmp_path / "all.sqlite", tmp_path / "export"
    with Journal.open(out) as journal:
        fill(journal)
        before = len(list(journal.measurements(PROTOCOL)))
    done = ended(command.main, "add", run, "--out", out, "--dirty")
    assert done.returncode == 0, done
    added = rows(run / "journal.sqlite")
    assert f"{len(added)} new rows" in done.stdout
    assert ended(command.main, "add", run, run, "--out", out, "--dirty").stdout.startswith(f"{out}: 0 new rows")
    with Journal.open(out, read_only=True) as journal, Journal.open(run / "journal.sqlite", read_only=True) as own:
        assert len(list(journal.measurements(PROTOCOL))) == before + len(added)
        assert journal.jobs() == own.jobs() and any(job.kind == JobKind.RUN for job in journal.jobs())
        assert own.runs().items() <= journal.runs().items()
        assert len(journal.workloads()) == 2
        counted = stats(journal)
    chosen = sum(is_chosen(why.pool) for _, why, _ in added)
    assert 0 < counted.chosen_rows == chosen < len(added)
    with Journal.open(out, read_only=True) as journal:
        export(journal, folder)
    problems = verify(folder, workers=1).problems
    assert all("does not decode" in line for line in problems), "what was there before is made up"
    table = kcg.data.load(folder).to_arrow(["sampler", "pool", "probability", "weight", "split_kernel", "region_id"])
    parts = {row["id"]: row["split_kernel"] for row in read_export(folder).kernels_table().to_pylist()}
    seen = Counter[str]()
    for row in table.to_pylist():
        assert row["weight"] == pytest.approx(weight_of(row["pool"] or "", row["probability"]))
        assert row["split_kernel"] == part_of_row(parts[row["region_id"]], row["pool"] or "")
        if is_chosen(row["pool"] or ""):
            assert row["split_kernel"] in (TRAIN, None) and row["weight"] < 1
        else:
            assert row["weight"] == 1
        seen[row["sampler"]] += 1
    assert seen["uniform"] == sum(sampler == "uniform" for sampler, _, _ in added)
    held_out = kcg.data.load(folder).parts("kernel", ["pool"])
    pools = [one for part in ("validation", "test") for one in held_out[part]["pool"].to_pylist()]
    assert not any(is_chosen(pool or "") for pool in pools)


def test_training_weighs_what_was_chosen_and_evaluation_leaves_it_out(run: Path, tmp_path: Path) -> None:
    from kcg.predictor.training_data import evaluation_pool, load

    add([run], tmp_path / "all.sqlite", dirty=True)
    with Journal.open(tmp_path / "all.sqlite", read_only=True) as journal:
        export(journal, tmp_path / "export")
    for _ in range(2):  # computed, then kept
        data = load(tmp_path / "export", cache=tmp_path / "cache", workers=1)
        names = [data.samplers[i] for i in data.sampler]
        assert {name for name, chosen in zip(names, data.chosen, strict=True) if chosen} >= {"mcts"}
        assert (data.weight[data.chosen] < 1).all() and (data.weight[~data.chosen] == 1).all()
        assert not data.chosen[evaluation_pool(data)].any()
        judged = {name for name, inside in zip(names, evaluation_pool(data), strict=True) if inside}
        assert judged == {"hand-coded", "uniform"}
        assert data.part("kernel", TRAIN)[data.chosen].any()
        assert not data.part("kernel", "test")[data.chosen].any()
        some = data.take(data.chosen)
        assert some.chosen.all() and len(some.weight) == len(some)


def recorded(path: Path, *, dirty: bool | None = False, jobs: bool = True) -> Path:
    with Journal.open(path) as journal:
        fill(journal)
        journal.add_run(Run("r9", "2026-11-29T00:00:00+00:00", "kcg optimize softmax", {"dirty": dirty}))
        if jobs:
            journal.add_jobs([Job(JobKind.RUN, "r9", "main", 0.0, 1.0, JobOutcome.OK, run_id="r9")])
    return path


def test_what_is_no_run_or_of_no_revision_is_one_line_and_adds_nothing(tmp_path: Path) -> None:
    out = tmp_path / "all.sqlite"
    (tmp_path / "empty").mkdir()
    other = recorded(tmp_path / "other.sqlite")
    with sqlite3.connect(other) as connection:
        connection.execute("PRAGMA user_version = 9")
    cases = [
        (recorded(tmp_path / "campaign.sqlite", jobs=False), JournalError, "no journal of a run of kcg optimize"),
        (recorded(tmp_path / "dirty.sqlite", dirty=True), UsageError, "no revision .*: leave it out, or give --dirty"),
        (recorded(tmp_path / "unknown.sqlite", dirty=None), UsageError, "no revision"),
        (tmp_path / "empty", JournalError, "there is no journal at .*journal.sqlite"),
        (other, JournalError, "has schema 9, this kcg reads schemas"),
    ]
    for path, error, says in cases:
        with pytest.raises(error, match=says) as caught:
            add([path], out)
        assert "\n" not in str(caught.value) and not out.exists()


def test_what_a_run_did_not_tell_counts_as_chosen_and_its_later_jobs_are_added(tmp_path: Path) -> None:
    path, out = recorded(tmp_path / "old.sqlite"), tmp_path / "all.sqlite"
    with Journal.open(path) as journal:
        journal.record(measurement(7, sampler="hand-coded"))
    assert add([path], out, dirty=True).jobs == 1
    with Journal.open(out, read_only=True) as journal:
        pools = {r.measurement.sampler: r.chosen.pool for r in journal.records(1)}
    assert pools.pop("hand-coded") == "" and set(pools.values()) == {"untold"}
    with Journal.open(path) as journal:
        journal.add_jobs([Job(JobKind.STEP, "softmax", "device:0", 2.0, 1.0, JobOutcome.OK, 1e-3, run_id="r9")])
        journal.record(measurement(8))
    added = add([path], out, dirty=True)
    assert (added.rows, added.jobs) == (1, 1)
    with Journal.open(out, read_only=True) as journal:
        assert [job.saving_s for job in journal.jobs()] == [None, 1e-3]


def test_weights_are_inverse_propensities_and_clipped() -> None:
    assert weight_of("", None) == weight_of("", 1.0) == weight_of("legal:1000", 0.001) == 1.0
    assert weight_of("near prior:200", 0.005) == pytest.approx(1.0)
    assert weight_of("near prior:200", 0.01) == pytest.approx(0.5)
    assert weight_of("near prior:200", 1e-6) == CLIP
    assert weight_of("candidates:812:1f3a9c02", 1.0) == weight_of("untold", None) == 1 / CLIP
    assert weight_of("candidates:2:1f3a9c02", 1.0) == 0.5


def test_what_was_stopped_is_a_lower_bound() -> None:
    reason = "no result within 30 s: its process was killed"
    assert at_least_s(Status.TIMEOUT, reason) == 30.0
    assert at_least_s(Status.COMPILE_TIMEOUT, reason) is None, "that says nothing of the program"
    assert at_least_s(Status.OK, "") is None and at_least_s(Status.TIMEOUT, "") is None
