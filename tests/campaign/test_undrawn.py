"""A kernel whose schedules cannot be drawn leaves a campaign incomplete, which says so; the next run draws them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from kcg.dataset.__main__ import main as dataset
from kcg.dataset.journal import Journal
from kcg.errors import ExitCode
from kcg.kernel.codec import kernel_of
from kcg.measure.service import MeasureService
from kcg.types import Region, Workload, WorkloadCall
from tests.commands import Ended, ended
from tests.conftest import CPU
from tests.kernels import empty, kernels_of


@pytest.fixture
def run(tmp_path: Path) -> Callable[[], Ended]:
    """`kcg dataset generate` of two kernels, one of which gets a table."""
    source = tmp_path / "kernels.sqlite"
    regions = [Region((kernel_of(kernels_of(empty(size, 16) + 1)[0]),)) for size in (32, 48)]
    with Journal.open(source) as journal:
        journal.add_workload(Workload("w", "tiny", tuple(WorkloadCall(region, 1) for region in regions)))
    words = f"generate --from {source} --out {tmp_path / 'rows.sqlite'} --device {CPU} --schedules-per-kernel 12"
    more = "--tables 1 --table-schedules 8 --predictor roofline"
    return lambda: ended(dataset, *words.split(), *more.split())


@pytest.mark.slow
@pytest.mark.parametrize("stays", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_is_not_drawn_is_not_complete(
    stays: bool, run: Callable[[], Ended], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where a later stage draws what an earlier one could not, nothing is missing."""
    beside, asked = MeasureService.beside, []

    def fails(service: MeasureService, *args: Any, **options: Any) -> Future[Any]:
        asked.append(args)
        if not stays and len(asked) > 1:
            return beside(service, *args, **options)
        future: Future[Any] = Future()
        future.set_exception(OSError("nothing is left of the disk"))
        return future

    with monkeypatch.context() as patched:
        patched.setattr(MeasureService, "beside", fails)
        first = run()
    with Journal.open(tmp_path / "rows.sqlite") as journal:
        target, toolchain = next(iter(journal.targets())), next(iter(journal.toolchains()))
        lattices = journal.lattices(target, toolchain)
    if stays:
        assert first.returncode == ExitCode.DEVICE_UNUSABLE and first.stdout.endswith("; 2 kernels not complete\n")
        assert first.stdout.startswith("2 kernels: 0 schedules measured") and not lattices
        last = first.stderr.splitlines()[-1]
        assert last.startswith("kcg: schedules of 2 kernels could not be drawn, the last of ")
        assert "nothing is left of the disk" in last and "budget" not in first.stderr
        first = run()
    assert first.returncode == 0 and first.stdout.endswith("complete\n"), first.stderr
