"""A search that several GPUs of one machine measure for. On a CPU two services stand for them: times say little."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import wait
from pathlib import Path

import pytest

from kcg.compat.device import DeviceChoice, cuda_count
from kcg.errors import DeviceError, ExitCode, UsageError
from kcg.judge.kept import Side
from kcg.measure import spread
from kcg.measure.spread import CHECK
from kcg.optimize import device as device_module
from kcg.optimize.baselines import measure_baselines
from kcg.optimize.console import progress
from kcg.optimize.device import Device
from kcg.optimize.run import optimize
from kcg.optimize.settings import Settings, check_gpu_count
from kcg.optimize.work import RegionWork
from kcg.report.result import read_result
from kcg.search.allocation import Limits
from tests.optimize_run import begun, optimized
from tests.waiting import PATIENCE_S

SCRIPT = Path(__file__).parents[1] / "scripts" / "one_layer.py"
SEARCH = "SELECT run_id, region_id, schedule_kind, schedule_body, variables, trial FROM measurements WHERE sampler = ?"


def query(folder: Path, text: str, *values: object) -> list[tuple[object, ...]]:
    with sqlite3.connect(f"file:{folder / 'journal.sqlite'}?mode=ro", uri=True) as journal:
        return journal.execute(text, values).fetchall()


def side_of(device: Device, work: RegionWork) -> Side:
    baseline = work.space.baseline()
    return Side(baseline, device.compiled(work, baseline))


def ran(settings: Settings) -> ExitCode:
    with progress(quiet=True) as shown:
        return optimize(settings, shown).exit_code


@pytest.mark.slow
def test_both_measure_for_the_search_and_one_judges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "check_gpu_count", lambda settings, choice: None)
    monkeypatch.setattr(spread, "AGREED", float("inf"))
    settings = Settings("softmax", "mini", device="CPU:X86", gpus=2, folder=tmp_path)
    with begun(settings) as run:
        device, works = run.device, run.works[:2]
        estimates = run.estimates(measure_baselines(works, device, budget=run.budget, log=run.log))
        alone_s = estimates._measuring_s
        taken = device.samples
        device.use_others(works)
        device.spread._checks[0].join(PATIENCE_S)
        assert device.spread.size == 2 and estimates._measuring_s == alone_s / 2, "a search measures twice as fast"
        assert device.samples > taken, "the check's samples count: the rest of their time was emptying the cache"

        steps = [[action.schedule for action in work.space.actions(work.space.start())][:6] for work in works]
        sent = [future for work, some in zip(works, steps, strict=True) for future in device.measure(work, some)]
        assert not wait(sent, timeout=PATIENCE_S).not_done
        seen = run.comparisons(estimates).compare(works[0], side_of(device, works[0]), None)
        assert seen.outcome is not None and seen.outcome.baseline_verification.passed
        device.check_journal()

    runs = dict(query(tmp_path, "SELECT run_id, json FROM runs"))
    other = [run for run, facts in runs.items() if json.loads(str(facts)).get("gpu") == "1"]
    searched = query(tmp_path, SEARCH, settings.search)
    assert len(searched) == len(sent) and set(Counter(row[1:] for row in searched).values()) == {1}
    assert {row[0] for row in searched} == runs.keys() and len(runs) == 2, "each kernel went to one of them"
    judged = query(tmp_path, "SELECT DISTINCT run_id FROM measurements WHERE sampler IN ('final', 'hand-coded')")
    assert judged == [(device.run_id,)] and [device.run_id] != other, "the first times what figures come from"
    assert query(tmp_path, SEARCH, CHECK) == [], "the check's rows are in no journal"


def test_a_cpu_is_one_device(tmp_path: Path) -> None:
    ended = optimized(SCRIPT, "--device", "CPU:X86", "--gpus", "2", "--report", tmp_path / "out")
    assert ended.returncode == ExitCode.DEVICE_UNUSABLE
    assert ended.stderr.splitlines()[-1] == "kcg: --gpus 2: CPU:X86 has 1 here: give at most that many"
    assert not (tmp_path / "out").exists()


def test_a_search_that_measures_nothing_has_no_use_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcg.compat.device.cuda_count", lambda: 2)
    cuda = DeviceChoice("CUDA", "")
    check_gpu_count(Settings("flux", gpus=2), cuda)
    for settings, words in (
        (Settings("flux", gpus=2, measurements=0), "--measurements 0"),
        (Settings("flux", gpus=2, search="tinygrad-beam:2"), "--search tinygrad-beam:2"),
    ):
        with pytest.raises(UsageError, match=f"^--gpus 2: {words} has no use for more than one GPU: leave out one"):
            check_gpu_count(settings, cuda)
    with pytest.raises(DeviceError, match="--gpus 3"):
        check_gpu_count(Settings("flux", gpus=3), cuda)
    assert Settings("flux").gpus == 1, "others' GPUs are left alone unless they are asked for"


def test_each_gpu_has_something_to_measure_where_compilers_are_few() -> None:
    assert [Limits.on_gpu(2, 2, gpus=gpus).measuring for gpus in (1, 2, 4)] == [3, 4, 8]
    assert [Limits.on_gpu(16, 2, gpus=gpus).measuring for gpus in (1, 2, 4)] == [24, 24, 24]


@pytest.mark.gpu
@pytest.mark.skipif(cuda_count() < 2, reason=f"needs two NVIDIA GPUs: the CUDA driver shows {cuda_count()}")
def test_two_gpus_find_what_one_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_others = Device.use_others

    def use_and_wait(device: Device, works: Sequence[RegionWork]) -> None:
        use_others(device, works)
        for check in device.spread._checks:
            check.join(PATIENCE_S)  # else so small a search may be over before

    monkeypatch.setattr(Device, "use_others", use_and_wait)
    results = {}
    for gpus in (1, 2):
        folder = tmp_path / str(gpus)
        settings = Settings("flux", "mini", device="CUDA", gpus=gpus, measurements=300, regions=False, folder=folder)
        assert ran(settings) in (ExitCode.OK, ExitCode.NOTHING_IMPROVED)
        results[gpus] = read_result(folder / "RESULT.json")
        assert all(row.chosen.verification.passed for row in results[gpus].regions if row.outcome == "improved")
    one, two = results[1], results[2]
    assert [row.region.id for row in one.regions] == [row.region.id for row in two.regions]
    assert two.total_after_s == pytest.approx(one.total_after_s, rel=0.2), "as good schedules"

    searched = query(tmp_path / "2", SEARCH, two.search)
    assert len({run for run, *_ in searched}) == 2, f"both measured: {two.warnings}"
    assert max(Counter(row[1:] for row in searched).values()) == 1, "no row is there twice"
    (judge,) = query(tmp_path / "2", "SELECT DISTINCT run_id FROM measurements WHERE sampler = 'final'")
    ((facts,),) = query(tmp_path / "2", "SELECT json FROM runs WHERE run_id = ?", *judge)
    assert "gpu" not in json.loads(str(facts)), "the first judges"
