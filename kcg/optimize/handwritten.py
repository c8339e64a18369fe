"""Hand-written kernels in an optimisation: read, matched and lowered in children, and timed with the rest.

They do not take part in the search of Opts, which goes on as if there were none. In validation each is a candidate like
what the search found (`kcg.judge.finalists`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcg.errors import DeviceError, UsageError
from kcg.judge.interface import Offer
from kcg.kernel import handwritten
from kcg.kernel.handwritten import Described, kernel_file
from kcg.kernels import DEVICES
from kcg.measure.device_info import first_line
from kcg.optimize.work import RegionWork

if TYPE_CHECKING:
    from kcg.optimize.device import Device
    from kcg.optimize.log import RunLog

READ_TIMEOUT_S = 60.0  # importing a file: Triton takes seconds
MATCH_TIMEOUT_S = 30.0
SAMPLER = "hand-written"


def read_files(device: Device, paths: Sequence[Path]) -> list[Described]:
    """The kernels of all files of `--kernels`. Raises UsageError where one cannot be read, or two have one name."""
    service, found = device.service, []
    for path in paths:
        file = kernel_file(path)
        try:
            found += service.beside(handwritten.describe_job, file, timeout_s=READ_TIMEOUT_S).result()
        except TimeoutError:
            raise UsageError(f"{path} took more than {READ_TIMEOUT_S:g} s to import: mend it or leave it out") from None
        except (UsageError, DeviceError):
            raise
        except Exception as error:  # it took its process down
            raise UsageError(f"{path} cannot be imported: {first_line(error)}") from None
    if twice := [name for name, count in Counter(kernel.name for kernel in found).items() if count > 1]:
        raise UsageError(f"two hand-written kernels are called {twice[0]}: rename one")
    return found


def offer(kernels: Sequence[Described], works: Sequence[RegionWork], *, device: Device, log: RunLog) -> None:
    """Find the regions that each kernel is for, and lower it for each. What fails is a reason, not the run's end."""
    target, service = device.service.target, device.service
    regions = [work.call.region for work in works]
    for kernel in kernels:
        wanted = DEVICES[kernel.kind]
        if wanted and wanted != target.device:
            log.warn(f"{kernel.name} is for {wanted} and this is {target.device}: it was left out")
            continue
        try:
            places = service.beside(handwritten.match_job, kernel, regions, target, timeout_s=MATCH_TIMEOUT_S).result()
        except DeviceError:
            raise
        except Exception as error:
            log.warn(f"{kernel.name} was left out: {_words(error, 'its predicate')}")
            continue
        if not places:
            log.warn(f"{kernel.name} is for no kernel of the workload: it was left out")
        waiting = [
            (
                works[place],
                service.beside(
                    handwritten.lower_job, kernel, regions[place], target, timeout_s=service.compile_timeout_s
                ),
            )
            for place in places
        ]
        for work, future in waiting:
            work.offer(_offer(kernel, future))


def _offer(kernel: Described, future: Future[Any]) -> Offer:
    try:
        return Offer(kernel.name, future.result())
    except DeviceError:
        raise
    except Exception as error:
        return Offer(kernel.name, None, _words(error, "lowering it"))


def _words(error: BaseException, what: str) -> str:
    return f"{what} did not end in time" if isinstance(error, TimeoutError) else first_line(error)


def measure(works: Sequence[RegionWork], device: Device, log: RunLog) -> None:
    """Time what was offered, where the baseline has a time and an earlier run did not do it."""
    if not any(work.offers for work in works):
        return
    log.progress.phase("timing the kernels that are written by hand")
    for work in works:
        batch = [o.schedule for o in work.offers if o.schedule is not None and work.observed(o.schedule) is None]
        for future in device.measure(work, batch, sampler=SAMPLER) if work.baseline_s else []:
            work.keep(future.result())
        device.check_journal()
