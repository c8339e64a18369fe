"""An export is read again in full: whatever is wrong with it is named, and nothing of it is an exception."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pebble import ProcessExpired
from pyarrow import parquet
from tinygrad import Tensor, Variable

from kcg.dataset import check as checking
from kcg.dataset.check import LISTED, Report, verify
from kcg.dataset.export import CHECKSUMS, export
from kcg.dataset.journal import Journal, Run
from kcg.kernel.codec import kernel_of
from kcg.kernel.opts.schedule import Opt, schedule_of
from kcg.types import CacheState, Kernel, Measurement, Region, Schedule, Status, Toolchain, Workload, WorkloadCall
from tests.dataset.test_export import as_schema_2, with_every_column
from tests.kernels import empty, kernels_of
from tests.known_targets import KNOWN_TARGETS

TARGET = KNOWN_TARGETS["sm_90"]
TOOLCHAIN = Toolchain(tinygrad="0.14.0", compiler="NVRTC", driver="", triton="", action_space=1)
OPTS = (
    (),
    (Opt("UPCAST", 0, 4),),
    (Opt("UPCAST", 0, 4), Opt("LOCAL", 0, 2)),
    (Opt("UPCAST", 0, 4), Opt("LOCAL", 0, 2), Opt("LOCAL", 0, 2)),
)
NOT_AN_AST = Kernel('{"format":1,"nodes":[["CONST","float32",[],"oops"]]}')


def kernel(tensor: Tensor) -> Kernel:
    return kernel_of(kernels_of(tensor)[-1])


def row(of: Kernel, schedule: Schedule, n: int = 0, **changes: object) -> Measurement:
    made = Measurement(
        region_id=of.id,
        schedule=schedule,
        target=TARGET.fingerprint,
        toolchain=TOOLCHAIN.fingerprint,
        protocol=1,
        status=Status.OK,
        samples_s=(1e-5, 1.5e-5),
        binary_hash=f"binary{n}",
        sampler="random",
        run_id="r1",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def written(folder: Path, *, kernels: tuple[Kernel, ...] = (), rows: tuple[Measurement, ...] = ()) -> Path:
    """An export of two real kernels with four schedules each, and of more where they are given."""
    good = kernel(empty(64, 32).exp()), kernel(empty(32, 48) @ empty(48, 64))
    with Journal.open(folder.with_suffix(".sqlite")) as journal:
        calls = [WorkloadCall(Region((k,)), 1) for k in (*good, *kernels)]
        journal.add_workload(Workload("model", "mini", tuple(calls)))
        journal.add_target(TARGET)
        journal.add_toolchain(TOOLCHAIN)
        journal.add_run(Run("r1", "2025-01-01T00:00:00+00:00", "kcg", {}))
        all_rows = [row(k, schedule_of(o), i) for k in good for i, o in enumerate(OPTS)]
        for m in (*all_rows, row(good[0], schedule_of(OPTS[1]), trial=1), *rows):
            assert journal.record(m)
        export(journal, folder)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("dataset") / "whole")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(whole, tmp_path / "copy"))


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children take seconds to start; what needs none of them is checked without."""

    def run(jobs: list[Any], workers: int, problems: Any, log: Any) -> None:
        for job in jobs:
            for problem in checking._check(job):
                problems.add(*problem)

    monkeypatch.setattr(checking, "_run_jobs", run)


def put(folder: Path, name: str, content: bytes | pa.Table) -> None:
    """Replaces a file of an export and mends its checksum, as somebody who means harm would."""
    if isinstance(content, bytes):
        (folder / name).write_bytes(content)
    else:
        parquet.write_table(content, folder / name)
    checksums = json.loads((folder / CHECKSUMS).read_text())
    checksums[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / CHECKSUMS).write_text(json.dumps(checksums))


def edit_json(folder: Path, name: str, edit: Callable[[Any], object]) -> None:
    value = json.loads((folder / name).read_text())
    edit(value)
    put(folder, name, json.dumps(value).encode())


def edit_column(folder: Path, name: str, column: str, edit: Callable[[list[Any]], object]) -> None:
    table = with_every_column(parquet.read_table(folder / name))
    values = table[column].to_pylist()
    edit(values)
    place, field = table.schema.get_field_index(column), table.schema.field(column)
    put(folder, name, table.set_column(place, field, pa.array(values, type=field.type)))


def only_line(report: Report) -> str:
    assert not report.ok
    (line,) = report.problems
    assert "\n" not in line
    return line


# -- through the processes that a user's verify starts


def test_a_good_export_has_no_problems(whole: Path) -> None:
    lines: list[tuple[str, float | None]] = []
    before = {p.name: p.read_bytes() for p in whole.iterdir()}
    report = verify(whole, log=lambda line, eta_s: lines.append((line, eta_s)))
    assert report.ok
    assert report == Report(rows=9, kernels=2, schedules=8, binaries=4, skipped_rows=0, problems=())
    assert "8 of 8 schedules" in lines[-1][0]
    assert lines[-1][1] == 0
    assert {p.name: p.read_bytes() for p in whole.iterdir()} == before


def test_foreign_asts_and_schedules_are_named_and_the_others_still_checked(tmp_path: Path) -> None:
    other = kernel(empty(7, 9).sum(1))
    bad = [
        schedule_of((Opt("UPCAST", 5, 4),)),  # no such axis
        schedule_of((Opt("UPCAST", 0, 7), Opt("NONSENSE", 0, 4))),
        Schedule("opts", '[["UPCAST", 0, 7]]'),  # not canonical
        Schedule("opts", '[["UPCAST","zero",{}]]'),
        Schedule("opts", "[1]"),
        Schedule("opts", "{"),
        Schedule("opts", "[" * 100_000),
    ]
    rows = [row(other, s, 10 + i) for i, s in enumerate(bad)]
    rows += [row(other, schedule_of((Opt("UPCAST", 0, 7),)), 50), row(other, Schedule("source", "{}"), 51)]
    rows += [row(NOT_AN_AST, schedule_of(o), 60) for o in OPTS]
    report = verify(written(tmp_path / "bad", kernels=(other, NOT_AN_AST), rows=tuple(rows)))
    asts = [p for p in report.problems if "does not decode" in p]
    assert len(asts) == 1, "once, however many schedules it has"
    assert NOT_AN_AST.id in asts[0]
    assert "kernels.parquet" in asts[0]
    schedules = [p for p in report.problems if "does not apply" in p]
    assert len(schedules) == len(bad) == len(report.problems) - 1
    assert all(other.id in p and "measurements.parquet" in p and "NVIDIA H200" in p for p in schedules)
    assert all(len(p) < 600 for p in schedules)
    for part in ("UPCAST(5,4) is not legal", "no Opt named 'NONSENSE'", "canonical"):
        assert any(part in p for p in schedules), part
    assert (report.rows, report.kernels, report.schedules) == (9 + len(rows), 4, 8 + len(rows))


@pytest.mark.slow
def test_a_job_that_does_not_end_is_ended_and_named(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "JOB_TIMEOUT_S", 0.01)  # less than importing tinygrad
    report = verify(whole, workers=1)
    assert len(report.problems) == 2
    assert all(": applying 4 schedules, the first [" in p for p in report.problems)
    assert all(p.endswith(" took more than 0.01 s") for p in report.problems)
    monkeypatch.setattr(checking, "ANSWER_TIMEOUT_S", 0.01)
    assert only_line(verify(whole, workers=1)) == "2 of 2 jobs were not done: the processes do not answer"


def test_a_job_that_ends_its_process_is_named() -> None:
    future: Future[list[tuple[str, str]]] = Future()
    future.set_exception(ProcessExpired("Abnormal termination", code=-11))
    ((_, line),) = checking._answer(checking._Job("k" * 64, "{}"), future) or ()
    assert line == f"kernels.parquet: kernel {'k' * 64}: decoding ended its process (Abnormal termination)"


# -- files, rows and what they refer to


@pytest.mark.usefixtures("in_this_process")
def test_a_file_that_changed_or_is_missing_is_named(folder: Path) -> None:
    (folder / "targets.json").write_text("{}")
    assert "targets.json does not agree with checksums.json" in only_line(verify(folder))
    (folder / "targets.json").unlink()
    assert "targets.json is missing" in only_line(verify(folder))
    (folder / CHECKSUMS).unlink()
    assert "no complete export" in only_line(verify(folder))
    shutil.rmtree(folder)
    assert "no complete export" in only_line(verify(folder))


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("name", ["kernels.parquet", "measurements.parquet", "timings.parquet"])
def test_a_corrupt_parquet_file_is_named_and_the_others_still_checked(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    for damaged in (b"", b"PAR1 no", content[: len(content) // 2], b"\x00" * len(content)):
        put(folder, name, damaged)
        report = verify(folder)
        assert f"{name} cannot be read" in only_line(report)
        assert (report.kernels, report.rows) == ((0, 9) if name.startswith("kernels") else (2, 0))
    for start in range(4, len(content) - 40, max(len(content) // 12, 1)):  # somewhere in the middle
        put(folder, name, content[:start] + bytes(40) + content[start + 40 :])
        assert all("\n" not in p for p in verify(folder).problems)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("name", ["kernels.parquet", "measurements.parquet", "timings.parquet"])
def test_a_foreign_schema_version_is_named(folder: Path, name: str) -> None:
    table = parquet.read_table(folder / name)
    put(folder, name, table.replace_schema_metadata({"kcg_schema": "999"}))
    line = only_line(verify(folder))
    assert name in line
    assert "schema" in line
    put(folder, name, table.drop_columns([table.schema.names[0]]))
    assert name in only_line(verify(folder))


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("what", ["target", "toolchain", "run"])
def test_what_measurements_refer_to_must_be_there(folder: Path, what: str) -> None:
    edit_json(folder, f"{what}s.json", dict.clear)
    report = verify(folder)
    line = only_line(report)
    assert f"{what}s.json" in line
    assert "9 rows skipped" in line
    assert "region" in line
    assert (report.rows, report.skipped_rows, report.schedules) == (0, 9, 0)


@pytest.mark.usefixtures("in_this_process")
def test_a_single_row_of_an_unknown_target_or_kernel_is_skipped(tmp_path: Path) -> None:
    good = kernel(empty(64, 32).exp())
    rows = (
        row(good, schedule_of(OPTS[0]), target="0" * 64),
        row(NOT_AN_AST, schedule_of(OPTS[0])),
        row(good, schedule_of(OPTS[0]), run_id="elsewhere"),
    )
    report = verify(written(tmp_path / "bad", rows=rows))
    assert [next(w for w in ("region", "target", "run") if f": {w} " in p) for p in sorted(report.problems)] == [
        "region",
        "run",
        "target",
    ]
    assert all("1 rows skipped" in p for p in report.problems)
    assert (report.rows, report.skipped_rows) == (9, 3)


@pytest.mark.usefixtures("in_this_process")
def test_many_problems_of_a_kind_are_counted_not_listed(tmp_path: Path) -> None:
    rows = tuple(row(kernel(empty(64, 32).exp()), schedule_of(()), run_id=f"run {i}") for i in range(50))
    report = verify(written(tmp_path / "bad", rows=rows))
    assert len(report.problems) == LISTED + 1
    assert report.problems[-1] == f"missing runs: {50 - LISTED} more"


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("sample", [-1.0, float("nan"), float("inf")])
def test_a_sample_that_is_no_time_is_named(folder: Path, sample: float) -> None:
    edit_column(folder, "timings.parquet", "samples_s", lambda v: v.__setitem__(4, [sample]))
    report = verify(folder)
    line = only_line(report)
    assert "measurements.parquet: row " in line
    assert "row 4 of timings.parquet" in line
    assert report.rows == 8, "all others are checked"


@pytest.mark.usefixtures("in_this_process")
def test_a_row_that_cannot_be_read_is_named_and_all_others_are_checked(folder: Path) -> None:
    edit_column(folder, "measurements.parquet", "status", lambda v: v.__setitem__(2, "great"))
    edit_column(folder, "measurements.parquet", "variables", lambda v: v.__setitem__(5, "{"))
    edit_column(folder, "measurements.parquet", "schedule_body", lambda v: v.__setitem__(7, "[1]"))
    report = verify(folder)
    assert ["row 2 " in report.problems[0], "row 5 " in report.problems[1]] == [True, True]
    assert "schedule [1] of kernel" in report.problems[2]
    assert (len(report.problems), report.rows) == (3, 7)


@pytest.mark.usefixtures("in_this_process")
def test_a_row_that_comes_twice_is_named(folder: Path) -> None:
    table = parquet.read_table(folder / "measurements.parquet")
    put(folder, "measurements.parquet", pa.concat_tables([table, table.slice(3, 1)]))
    report = verify(folder)
    assert "comes twice" in only_line(report)
    assert (report.rows, report.skipped_rows) == (9, 1)


@pytest.mark.usefixtures("in_this_process")
def test_a_kernel_in_the_wrong_part_of_a_split_is_named(folder: Path) -> None:
    edit_column(folder, "kernels.parquet", "split_workload", lambda v: v.__setitem__(1, "test"))
    line = only_line(verify(folder))
    assert "split_workload is 'test', but should be" in line


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("split_workload", "test", "split_workload is 'test', but should be 'train'"),
        ("split_twin", None, "split_twin is None, but should be '"),
        ("split_alike", None, "split_alike is None, but should be '"),
        ("near_in_training", None, "near_in_training is None, but should be "),
        ("median_s", 1.0, "median_s is 1.0, but should be 1.2"),
        ("median_s", None, "median_s is None, but should be 1.2"),
        ("n_samples", 3, "n_samples is 3, but should be 2"),
    ],
)
def test_what_is_beside_a_row_must_be_what_the_other_files_say(
    folder: Path, column: str, value: object, says: str
) -> None:
    edit_column(folder, "measurements.parquet", column, lambda v: v.__setitem__(4, value))
    line = only_line(verify(folder))
    assert line.startswith("measurements.parquet: row 4: ") and says in line


@pytest.mark.usefixtures("in_this_process")
def test_a_failed_row_with_a_time_beside_it_is_named(folder: Path, tmp_path: Path) -> None:
    failed = row(kernel(empty(64, 32).exp()), schedule_of(OPTS[3]), 9, status=Status.NOISY, reason="it varied")
    whole = written(tmp_path / "failed", rows=(replace(failed, run_id="r1", trial=7),))
    assert verify(whole).ok
    place = parquet.read_table(whole / "measurements.parquet")["status"].to_pylist().index("noisy")
    edit_column(whole, "measurements.parquet", "median_s", lambda v: v.__setitem__(place, 1e-5))
    assert f"row {place}: median_s is" in only_line(verify(whole))


@pytest.mark.usefixtures("in_this_process")
def test_an_export_of_the_schema_before_has_nothing_beside_its_rows_and_is_right(folder: Path) -> None:
    as_schema_2(folder)
    assert verify(folder) == Report(rows=9, kernels=2, schedules=8, binaries=4, skipped_rows=0, problems=())


@pytest.mark.usefixtures("in_this_process")
def test_a_row_that_beats_the_roofline_of_its_target_is_named(tmp_path: Path) -> None:
    target = replace(TARGET, cores=132, clock_limit_mhz=1980.0, bandwidth_bytes_s=4.8e12, cache_bytes=60 << 20)
    many = 1 << 26
    copied, matmul = kernel(empty(many) * 2), kernel(empty(4096, 4096) @ empty(4096, 4096))
    picked = kernel(empty(3, 5000, 64).gather(1, Tensor.empty(3, 16, 64, dtype="int32", device="CPU")))
    n = Variable("n", 1, many)
    symbolic = kernel((empty(many)[: n.bind(many)] * 2).contiguous())
    least_copy_s = (2 * 4 * many - target.cache_bytes) / 4.8e12
    least_matmul_s = 2 * 4096**3 / (132 * 8192 * 1.98e9)
    times = {copied: least_copy_s, matmul: least_matmul_s}

    def report(factor: float, *others: Measurement) -> tuple[str, ...]:
        rows = [
            row(k, schedule_of(()), i, target=target.fingerprint, samples_s=(factor * s,) * 3)
            for i, (k, s) in enumerate(times.items())
        ]
        name = tmp_path / str(len(list(tmp_path.iterdir())))
        with Journal.open(name.with_suffix(".sqlite")) as journal:
            for each in (*times, *(k for k in (picked, symbolic))):
                journal.add_kernel(each)
            journal.add_target(target)
            journal.add_toolchain(TOOLCHAIN)
            journal.add_run(Run("r1", "2025-01-01T00:00:00+00:00", "kcg", {}))
            for m in (*rows, *others):
                journal.record(m)
            export(journal, name)
        return verify(name).problems

    assert report(1.01) == ()
    lines = report(0.99)
    assert len(lines) == 2 and all("the device needs at least" in line for line in lines)
    assert {k.id for k in times} == {k.id for k in times for line in lines if k.id in line}
    small = [
        row(k, schedule_of(()), 9, target=target.fingerprint, samples_s=(1e-6,), variables=variables)
        for k, variables in ((picked, ()), (symbolic, (("n", 3),)))
    ]
    assert report(1.01, *small) == (), "a gather reads what it picks, and a symbolic size may be small"
    warm = row(copied, schedule_of(()), 0, target=target.fingerprint, cache_state=CacheState.WARM)
    kept_s = target.cache_bytes / 4.8e12
    assert report(1.01, replace(warm, samples_s=(least_copy_s - 0.9 * kept_s,))) == (), "what the cache keeps"
    assert len(report(1.01, replace(warm, samples_s=(least_copy_s - 1.1 * kept_s,)))) == 1
    source = replace(row(copied, Schedule("source", "{}")), target=target.fingerprint, samples_s=(1e-6,))
    assert len(report(1.01, source)) == 1, "however its schedule is written"


@pytest.mark.usefixtures("in_this_process")
def test_an_ast_of_another_id_is_named(folder: Path) -> None:
    edit_column(folder, "kernels.parquet", "ast_json", lambda v: v.__setitem__(1, NOT_AN_AST.ast_json))
    line = only_line(verify(folder))
    assert "kernels.parquet: row 1 does not hash to its id" in line


@pytest.mark.usefixtures("in_this_process")
def test_workloads_that_name_a_missing_region_are_named(folder: Path) -> None:
    edit_json(folder, "workloads.json", lambda v: v["workloads"]["model/mini"]["calls"].append(["f" * 64, 1, [], ""]))
    line = only_line(verify(folder))
    assert "workloads.json: row model/mini" in line
    assert "ffff" in line


@pytest.mark.usefixtures("in_this_process")
def test_a_region_that_is_not_what_its_id_says_is_named(folder: Path) -> None:
    kernel_id = next(iter(json.loads((folder / "workloads.json").read_text())["regions"]))
    edit_json(folder, "workloads.json", lambda v: v["regions"].__setitem__("f" * 64, [[kernel_id], []]))
    assert "does not hash to its id" in only_line(verify(folder))


@pytest.mark.usefixtures("in_this_process")
def test_files_that_are_no_json_of_ours_are_named(folder: Path) -> None:
    for name in ("targets.json", "toolchains.json", "runs.json", "workloads.json"):
        content = (folder / name).read_bytes()
        for text in (b"[]", b"{", b"\xff", b'{"x": 1}', b"[" * 100_000):
            put(folder, name, text)
            assert name in only_line(verify(folder))
        put(folder, name, content)
    assert verify(folder).ok


@pytest.mark.usefixtures("in_this_process")
def test_a_target_that_kcg_cannot_plan_for_is_named(tmp_path: Path) -> None:
    exotic = replace(TARGET, device="QUANTUM")
    rows = (row(kernel(empty(64, 32).exp()), schedule_of(OPTS[0]), target=exotic.fingerprint),)
    folder = written(tmp_path / "bad", rows=rows)
    edit_json(folder, "targets.json", lambda v: v.__setitem__(exotic.fingerprint, asdict(exotic)))
    line = only_line(verify(folder))
    assert "cannot plan for QUANTUM" in line
