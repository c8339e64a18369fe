"""Replaying a whole comparison: kernels are shared between processes, and what was replayed is kept, so that a
comparison that was cut goes on where it was.

Replays are lines of JSON. Each carries a hash of all that it depends on beside its kernel and its turn: the checkpoint,
the tables, the settings and the code. Lines of another hash are left aside.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evaluation.search.comparison import Bench, LedOf, Replay, Settings, Turn, predictor_of, replay_all, turns
from evaluation.search.rollouts import Led
from kcg.errors import DataError, DeviceError, MismatchError
from kcg.search.replay import RecordedKernel, ReplayTable
from kcg.types import Region, Target, canonical_json, content_id

if TYPE_CHECKING:
    from kcg.rl.policy import Policy

FORMAT = "kcg-plays-1"
REPLAYED = ("kcg/kernel", "kcg/predictor", "kcg/search", "kcg/rl", "evaluation/search")
"""Folders whose code decides what is replayed."""
NOT_REPLAYED = (
    "alike.py",
    "allocation.py",
    "allocation_in_time.py",
    "bench_env.py",
    "bench_space.py",
    "bench_workers.py",
    "compare.py",
    "comparison_text.py",
    "correcting.py",
    "shared_budget.py",
    "draw.py",
    "drawing.py",
    "env_speed.py",
    "on_device.py",
    "device_journal.py",
    "replays.py",
    "regret.py",
    "small_model.py",
    "workers.py",
)
"""Modules that no replay depends on."""

Log = Callable[[str], None]
Replayed = dict[str, dict[Turn, Replay]]
"""By region id."""


@dataclass(frozen=True)
class Guides:
    """What strategies are guided by."""

    checkpoint: Path
    led_of: LedOf | None = None  # a function of a module: processes must find it
    policy: str = ""  # which one it is: replays are kept under it


def guides_of(checkpoint: Path, policy: Path | None = None) -> Guides:
    """A predictor's file, and a policy's where there is one. Raises DataError where that cannot be read."""
    if policy is None:
        return Guides(checkpoint)
    policy_of(policy)
    return Guides(checkpoint, functools.partial(_led, policy), _sha256(policy))


def _led(path: Path, region: Region, target: Target, table: ReplayTable) -> Led:
    """A policy's file on the schedules of one table, whose steps are its actions."""
    from kcg.kernel.opts.space import KernelSpace
    from kcg.rl.observation import Observer

    policy = policy_of(path)
    if target.fingerprint not in policy.about.targets:
        raise MismatchError(f"{path} was not trained on {target.model}, of which the tables are: give its own policy")
    return Led.by(policy, Observer(KernelSpace(region, target), table.actions))


@functools.lru_cache(maxsize=1)
def policy_of(path: Path) -> Policy:
    """The policy of a file, read once in a process."""
    from kcg.rl.policy import read_policy

    return read_policy(path)


@dataclass(frozen=True)
class _Job:
    kernel: RecordedKernel
    settings: Settings
    guides: Guides
    known: Mapping[Turn, Replay]


def compare(
    kernels: Sequence[RecordedKernel],
    guides: Guides,
    settings: Settings,
    *,
    tables: Path,
    journal: Path,
    jobs: int = 1,
    log: Log = lambda line: None,
) -> Replayed:
    """Replays what is not in the journal yet, and returns all replays. `tables` is the file that the kernels came from.

    Raises DataError or MismatchError where the checkpoint cannot be used, DeviceError where a process died.
    """
    check_checkpoint(guides.checkpoint, kernels)
    stamp = stamp_of(guides, settings, tables)
    replayed = read_replays(journal, stamp)
    waiting = []
    for kernel in kernels:
        known = replayed.setdefault(kernel.region.id, {})
        if turns(kernel, settings, known, has_policy=guides.led_of is not None):
            waiting.append(_Job(kernel, settings, guides, known))
    if len(waiting) < len(kernels):
        log(f"{len(kernels) - len(waiting)} of {len(kernels)} kernels were replayed before: {journal}")
    left = len(waiting)

    def take(job: _Job, made: dict[Turn, Replay]) -> None:
        nonlocal left
        left -= 1
        append_replays(journal, stamp, job.kernel.region.id, made.values())
        replayed[job.kernel.region.id].update(made)
        seconds = sum(p.seconds for p in made.values())
        log(
            f"{job.kernel.family} {job.kernel.region.id[:8]}: {len(made)} replays, {seconds:.1f} s; {left} kernels left"
        )

    if jobs < 2 or len(waiting) < 2:
        for job in waiting:
            take(job, _replay_job(job))
        return replayed
    from kcg.training.predictor import workers

    try:
        with workers(min(jobs, len(waiting))) as pool:
            futures = {pool.submit(_replay_job, job): job for job in waiting}
            for future in as_completed(futures):
                take(futures[future], future.result())
    except BrokenProcessPool as error:
        raise DeviceError("a process that was playing died (out of memory?): the same command goes on") from error
    return replayed


def _replay_job(job: _Job) -> dict[Turn, Replay]:
    """What is missing on one kernel, in whichever process."""
    kernel, guides = job.kernel, job.guides
    led = guides.led_of(kernel.region, kernel.target, kernel.table) if guides.led_of else None
    bench = Bench(kernel, predictor_of(guides.checkpoint), led=led, batch_size=job.settings.batch_size)
    return replay_all(bench, job.settings, job.known)


def check_checkpoint(checkpoint: Path, kernels: Sequence[RecordedKernel]) -> None:
    """Raises MismatchError where a checkpoint never saw the target of the tables, DataError where it cannot be read."""
    about = predictor_of(checkpoint).checkpoint.about
    for kernel in kernels:
        if kernel.target.fingerprint not in {target["fingerprint"] for target in about.targets}:
            models = ", ".join(str(target.get("model")) for target in about.targets)
            raise MismatchError(
                f"{checkpoint} was trained on {models or 'no target'}, the tables are of {kernel.target.model}: "
                "give the checkpoint of that target"
            )


def stamp_of(guides: Guides, settings: Settings, tables: Path) -> str:
    """The hash of all that replays depend on."""
    root = Path(__file__).parents[2]
    code = [path for name in REPLAYED for path in sorted((root / name).glob("*.py")) if path.name not in NOT_REPLAYED]
    return content_id(
        {
            "format": FORMAT,
            "checkpoint": _sha256(guides.checkpoint),
            "policy": guides.policy,
            "tables": _sha256(tables),
            "batch_size": settings.batch_size,
            "code": [[path.name, _sha256(path)] for path in code],
        }
    )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_replays(journal: Path, stamp: str) -> Replayed:
    """The replays of a journal under a hash; none where there is no journal. A line that was cut is left aside.

    Raises DataError where the journal cannot be read.
    """
    try:
        text = journal.read_text() if journal.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{journal} cannot be read ({error}): remove it to replay all") from error
    found: Replayed = {}
    for line in text.splitlines():
        try:
            stored = json.loads(line)
            if stored["stamp"] != stamp:
                continue
            curve = tuple((int(n), float(seconds)) for n, seconds in stored["play"].pop("curve"))
            replay = Replay(**stored["play"], curve=curve)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        found.setdefault(stored["region"], {})[replay.contender, replay.seed, replay.budget] = replay
    return found


def append_replays(journal: Path, stamp: str, region: str, replays: Iterable[Replay]) -> None:
    """Adds replays to a journal, on a new line: the last one may have been cut."""
    journal.parent.mkdir(parents=True, exist_ok=True)
    lines = [canonical_json({"stamp": stamp, "region": region, "play": asdict(replay)}) for replay in replays]
    with journal.open("a") as file:
        file.write("\n" + "\n".join(lines) + "\n")
