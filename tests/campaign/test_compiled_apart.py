"""A campaign in two parts: compiled where there is no device, and measured where there is one. Every kind is drawn."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from kcg.campaign.compiling import CompilesOnly, runs_on
from kcg.campaign.generate import generate_here, generate_on
from kcg.campaign.settings import CampaignSettings, CampaignSummary, Stage, parse_mix
from kcg.campaign.tasks import REGIONS, kinds_of, with_regions
from kcg.dataset.__main__ import main as dataset
from kcg.dataset.choices import HAND_CODED
from kcg.dataset.export import export, read_export
from kcg.dataset.journal import Chosen, Journal
from kcg.dataset.programs import ProgramFile, merge_programs, pack, programs_beside, unpack
from kcg.errors import JournalError, UsageError
from kcg.kernel.codec import kernel_of
from kcg.kernel.kinds import baseline_of, compile_region
from kcg.kernel.program import Program
from kcg.kernel.targets import TARGETS, target_asked, target_named
from kcg.measure.protocol import PROTOCOL
from kcg.measure.service import MeasureService
from kcg.types import Measurement, Region, Schedule, Target, Workload, WorkloadCall
from kcg.workloads.registry import spec_of
from tests.commands import ended
from tests.kernel.tile.running import HAS_TRITON, WITHOUT
from tests.kernels import empty, kernels_of

H100 = target_named("h100")
MIX = parse_mix("uniform=0.5,walk:raw=0.5")
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)


def quiet(line: str, eta_s: float | None) -> None:
    pass


@pytest.fixture(scope="module")
def workload() -> Workload:
    asts = [ast for made in (empty(28) + 1, empty(16, 16).sum(1)) for ast in kernels_of(made)]
    return Workload("small", "x", tuple(WorkloadCall(Region((kernel_of(ast),)), 1) for ast in asts))


@pytest.fixture(scope="module")
def target() -> Target:
    with MeasureService("CPU:X86", run_id="looks", compile_workers=1) as service:
        return service.target


def compile_only(out: Path, workload: Workload, target: Target, count: int = 6) -> CampaignSummary:
    settings = CampaignSettings(out, schedules_per_kernel=count, mix=MIX, stage=Stage.COMPILE)
    with CompilesOnly(target, compile_workers=1) as service:
        return generate_on(settings, [(service, [workload])], began=time.monotonic(), log=quiet)


def measure_only(out: Path, shard: tuple[int, int] = (1, 1)) -> CampaignSummary:
    settings = CampaignSettings(out, device="CPU:X86", stage=Stage.MEASURE, compile_workers=1, shard=shard)
    return generate_here(settings, log=quiet)


def rows(path: Path) -> list[Measurement]:
    with Journal.open(path, create=False, read_only=True) as journal:
        return list(journal.measurements(PROTOCOL))


def chosen(path: Path) -> dict[tuple[str, Schedule], Chosen]:
    with Journal.open(path, create=False, read_only=True) as journal:
        return {(r.measurement.region_id, r.measurement.schedule): r.chosen for r in journal.records(PROTOCOL)}


def test_what_is_compiled_apart_is_measured_once_with_how_it_was_drawn(
    tmp_path: Path, workload: Workload, target: Target
) -> None:
    out = tmp_path / "j.sqlite"
    made = compile_only(out, workload, target)
    assert made.finished and made.compiled == made.waiting == 12 and not made.measured
    assert made.program_bytes < 12 * 5_000
    assert rows(out) == []
    assert compile_only(out, workload, target).compiled == 0, "nothing is compiled twice"
    with ProgramFile.open(programs_beside(out), create=False) as file:
        waiting = {(one.region_id, one.schedule): one for one in file.waiting()}
    counts = Counter(one.sampler for one in waiting.values())
    assert counts[HAND_CODED] == counts["raw"] == 2 and counts["uniform"] >= 2
    summary = measure_only(out)
    assert summary.finished and summary.measured >= 12
    with Journal.open(out, create=False, read_only=True) as journal:
        records = [one for one in journal.records(PROTOCOL) if not one.measurement.trial]
        toolchains = journal.toolchains()
    assert len(records) == len(waiting), "no row is lost, or there twice"
    for record in records:
        row = record.measurement
        drawn = waiting[row.region_id, row.schedule]
        assert record.chosen == drawn.chosen and row.sampler == drawn.sampler and row.status == "ok"
        assert row.compile_s == drawn.compile_s and row.target == target.fingerprint
        assert replace(toolchains[row.toolchain], driver="") == toolchains[drawn.toolchain]
    assert Counter(row.sampler for row in rows(out) if row.trial) == {HAND_CODED: 2}, "the noise floor"
    again = measure_only(out)
    assert again.measured == 0 and again.finished
    more = compile_only(out, workload, target, 8)
    assert more.finished and more.compiled == 4, "what is measured and waits counts once"
    assert measure_only(out).measured == 4
    of_uniform = [one for one in records if one.measurement.sampler == "uniform"]
    assert all(one.chosen.pool.startswith("legal:") and 0 < (one.chosen.probability or 0) < 1 for one in of_uniform)


def test_an_export_and_a_merge_keep_pool_scores_and_probability(
    tmp_path: Path, workload: Workload, target: Target
) -> None:
    out = tmp_path / "j.sqlite"
    compile_only(out, workload, target, 3)
    measure_only(out)
    export(Journal.open(out, read_only=True), tmp_path / "export")
    found = read_export(tmp_path / "export")
    wanted = chosen(out)
    assert {(r.measurement.region_id, r.measurement.schedule): r.chosen for r in found.records(PROTOCOL)} == wanted
    assert any(one.probability is not None and one.expected is not None for one in wanted.values())
    table = found.table(PROTOCOL, ["sampler", "probability"])
    assert table["probability"].null_count < len(table)
    assert ended(dataset, "merge", tmp_path / "export", "--out", tmp_path / "all.sqlite").returncode == 0
    with Journal.open(tmp_path / "all.sqlite", read_only=True) as journal:
        assert {
            (r.measurement.region_id, r.measurement.schedule): r.chosen for r in journal.records(PROTOCOL)
        } == wanted


def test_parts_are_merged_with_their_programs(tmp_path: Path, workload: Workload, target: Target) -> None:
    parts = [tmp_path / "one.sqlite", tmp_path / "two.sqlite"]
    for path, call in zip(parts, workload.calls, strict=True):
        compile_only(path, replace(workload, calls=(call,)), target)
    out = tmp_path / "all.sqlite"
    assert ended(dataset, "merge", *parts, parts[0], "--out", out).returncode == 0
    with ProgramFile.open(programs_beside(out), create=False) as file:
        assert len(file.waiting()) == 12
    with pytest.raises(UsageError, match="exists"):
        merge_programs(parts, out)
    by_shards = [measure_only(out, (1, 3)), measure_only(out, (2, 3))]
    before = [row for row in rows(out) if not row.trial]
    rest = measure_only(out)
    assert rest.finished and len(before) % 6 == 0 and rest.measured + sum(one.measured for one in by_shards) >= 12
    after = [row for row in rows(out) if not row.trial]
    assert after[: len(before)] == before, "what was measured is not measured again"
    assert len({row.key for row in after}) == len(after) == 12


def test_a_kill_while_it_compiles_loses_nothing_that_was_added(tmp_path: Path) -> None:
    out = tmp_path / "j.sqlite"
    command = [sys.executable, "-m", "kcg.dataset", "generate", "--compile-only", "--target", "h100", "--workloads",
               "softmax/mini", "--kinds", "tile", "--schedules-per-kernel", "3", "--compilers", "1", "--quiet",
               "--out", str(out)]  # fmt: skip
    if not HAS_TRITON:
        pytest.skip(WITHOUT)
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    beside, deadline, count = programs_beside(out), time.monotonic() + 100, 0
    while count < 3 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
        if beside.exists():
            try:
                with sqlite3.connect(f"file:{beside}?mode=ro", uri=True) as connection:
                    count = connection.execute("SELECT count(*) FROM waiting").fetchone()[0]
            except sqlite3.OperationalError:
                continue
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert count >= 3
    with ProgramFile.open(beside, create=False) as file:
        before = file.waiting()
    assert len(before) >= count
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    with ProgramFile.open(beside, create=False) as file:
        after = file.waiting()
        assert all(isinstance(file.program(one.program), Program) for one in after if one.program)
    assert after[: len(before)] == before
    assert len({(one.region_id, one.variables, one.schedule) for one in after}) == len(after)
    assert min(Counter(one.region_id for one in after).values()) == 3


@needs_triton
def test_regions_and_kernels_of_packed_weights_are_sources_for_tile_programs(tmp_path: Path) -> None:
    found = list(with_regions(spec_of("llm").capture("mini"), 1, H100))
    assert [one.preset for one in found] == ["mini", f"mini{REGIONS}"]
    (region,) = found[1].calls
    assert len(region.region.kernels) > 1
    assert kinds_of(region, (), H100) == ["tile"] and kinds_of(found[0].calls[0], (), H100) == ["opts", "tile"]
    packed = next(call for call in found[0].calls if "uint8" in call.region.kernel.ast_json)
    out = tmp_path / "j.sqlite"
    settings = CampaignSettings(out, schedules_per_kernel=4, kinds=("tile",), stage=Stage.COMPILE)
    with CompilesOnly(H100, compile_workers=1) as service:
        calls = Workload("llm", "some", (replace(packed, seen=()), replace(region, seen=())))
        summary = generate_on(settings, [(service, [calls])], began=time.monotonic(), log=quiet)
    assert summary.finished and summary.waiting == 8
    with ProgramFile.open(programs_beside(out), create=False) as file:
        tiles = [one for one in file.waiting() if one.schedule.kind == "tile"]
        assert {one.region_id for one in tiles} == {packed.region.id, region.region.id}
        for one in tiles:
            made = file.program(one.program)
            assert isinstance(made, Program) and all(launch.compiled.binary for launch in made.launches)
            assert json.loads(one.chosen.scores)["predicted_s"] > 0


def test_a_program_comes_back_as_it_was_packed_and_damage_is_seen(tmp_path: Path, workload: Workload) -> None:
    x86 = replace(TARGETS["x86_64"], renderer="X86")
    region = workload.calls[0].region
    made = compile_region(region, baseline_of(region, x86), x86)
    whole, packed = pack(made)
    back = unpack(packed, hashlib.sha256(whole).hexdigest()[:32])
    assert back == replace(made, source="")  # type: ignore[type-var]
    with pytest.raises(ValueError, match="does not hash"):
        unpack(packed, "0" * 32)
    other = tmp_path / "j.sqlite.programs"
    with Journal.open(other):
        pass
    with pytest.raises(JournalError, match="no file of programs"):
        ProgramFile.open(other)


def test_programs_for_another_target_are_refused_in_a_line(tmp_path: Path, workload: Workload, target: Target) -> None:
    out = tmp_path / "j.sqlite"
    compile_only(out, workload, replace(target, cores=target.cores + 1), 3)
    with pytest.raises(UsageError, match="compile with another --target"):
        measure_only(out)
    assert runs_on(replace(target, power_limit_w=1.0), target), "what no program depends on"


def test_programs_are_compiled_for_the_part_of_a_gpu_that_measures_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert target_asked("h200") == TARGETS["sm_90"]
    monkeypatch.setenv("KCG_MULTIPROCESSORS", "80")
    part = target_asked("h200")
    assert part.cores == 80 and part.model == "NVIDIA H200, 80 of 132 multiprocessors"
    assert not runs_on(TARGETS["sm_90"], part)
    assert target_asked("x86_64") == TARGETS["x86_64"], "a CPU has no parts"
    monkeypatch.setenv("KCG_MULTIPROCESSORS", "132")
    assert target_asked("h200") == TARGETS["sm_90"]
    monkeypatch.setenv("KCG_MULTIPROCESSORS", "133")
    with pytest.raises(UsageError, match="h200 has 132"):
        target_asked("h200")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--compile-only"], "needs --target"),
        (["--compile-only", "--measure-only", "--target", "h100"], "one of them"),
        (["--target", "h100"], "is for --compile-only"),
        (["--kinds", "words"], "unknown kind"),
        (["--compile-only", "--target", "h10"], "unknown target 'h10': did you mean h100"),
    ],
)
def test_options_that_contradict_each_other_get_one_line(tmp_path: Path, options: list[str], words: str) -> None:
    out = tmp_path / "j.sqlite"
    done = ended(dataset, "generate", "--workloads", "rope/mini", "--out", out, *options)
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1
    assert not out.exists()


def test_measuring_what_nobody_compiled_says_so(tmp_path: Path) -> None:
    done = ended(dataset, "generate", "--measure-only", "--device", "CPU:X86", "--out", tmp_path / "j.sqlite")
    assert done.returncode == 2 and "there are no compiled programs at" in done.stderr and done.stderr.count("\n") == 1
