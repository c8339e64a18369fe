"""Playing a whole comparison: kernels are shared between processes, and what was played is kept, so that a comparison
that was cut goes on where it was.

Plays are lines of JSON. Each carries a hash of all that it depends on beside its kernel and its turn: the checkpoint,
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

from evaluation.search.comparison import Bench, LedOf, Play, Settings, Turn, play_all, predictor_of, turns
from evaluation.search.rollouts import Led
from kcg.errors import DataError, DeviceError, MismatchError
from kcg.search.replay import RecordedKernel, ReplayTable
from kcg.types import Region, Target, canonical_json, content_id

if TYPE_CHECKING:
    from kcg.rl.policy import Policy

FORMAT = "kcg-plays-1"
PLAYED = ("kcg/kernel", "kcg/predictor", "kcg/search", "kcg/rl", "evaluation/search")
"""Folders whose code decides what is played."""
NOT_PLAYED = (
    "alike.py",
    "allocation.py",
    "auction_in_time.py",
    "bench_env.py",
    "bench_space.py",
    "bench_thinking.py",
    "compare.py",
    "comparison_text.py",
    "correcting.py",
    "dealing.py",
    "draw.py",
    "drawing.py",
    "env_speed.py",
    "live.py",
    "live_journal.py",
    "plays.py",
    "regret.py",
    "small_model.py",
    "workers.py",
)
"""Modules that no play depends on."""

Say = Callable[[str], None]
Played = dict[str, dict[Turn, Play]]
"""By region id."""


@dataclass(frozen=True)
class Guides:
    """What strategies are guided by."""

    checkpoint: Path
    led_of: LedOf | None = None  # a function of a module: processes must find it
    policy: str = ""  # which one it is: plays are kept under it


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
    known: Mapping[Turn, Play]


def compare(
    kernels: Sequence[RecordedKernel],
    guides: Guides,
    settings: Settings,
    *,
    tables: Path,
    journal: Path,
    jobs: int = 1,
    say: Say = lambda line: None,
) -> Played:
    """Plays what is not in the journal yet, and returns all plays. `tables` is the file that the kernels came from.

    Raises DataError or MismatchError where the checkpoint cannot be used, DeviceError where a process died.
    """
    check_checkpoint(guides.checkpoint, kernels)
    stamp = stamp_of(guides, settings, tables)
    played = read_plays(journal, stamp)
    waiting = []
    for kernel in kernels:
        known = played.setdefault(kernel.region.id, {})
        if turns(kernel, settings, known, has_policy=guides.led_of is not None):
            waiting.append(_Job(kernel, settings, guides, known))
    if len(waiting) < len(kernels):
        say(f"{len(kernels) - len(waiting)} of {len(kernels)} kernels were played before: {journal}")
    left = len(waiting)

    def take(job: _Job, made: dict[Turn, Play]) -> None:
        nonlocal left
        left -= 1
        append_plays(journal, stamp, job.kernel.region.id, made.values())
        played[job.kernel.region.id].update(made)
        seconds = sum(p.seconds for p in made.values())
        say(f"{job.kernel.family} {job.kernel.region.id[:8]}: {len(made)} plays, {seconds:.1f} s; {left} kernels left")

    if jobs < 2 or len(waiting) < 2:
        for job in waiting:
            take(job, _play_job(job))
        return played
    from kcg.predictor.training import workers

    try:
        with workers(min(jobs, len(waiting))) as pool:
            futures = {pool.submit(_play_job, job): job for job in waiting}
            for future in as_completed(futures):
                take(futures[future], future.result())
    except BrokenProcessPool as error:
        raise DeviceError("a process that was playing died (out of memory?): the same command goes on") from error
    return played


def _play_job(job: _Job) -> dict[Turn, Play]:
    """What is missing on one kernel, in whichever process."""
    kernel, guides = job.kernel, job.guides
    led = guides.led_of(kernel.region, kernel.target, kernel.table) if guides.led_of else None
    bench = Bench(kernel, predictor_of(guides.checkpoint), led=led, batch_size=job.settings.batch_size)
    return play_all(bench, job.settings, job.known)


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
    """The hash of all that plays depend on."""
    root = Path(__file__).parents[2]
    code = [path for name in PLAYED for path in sorted((root / name).glob("*.py")) if path.name not in NOT_PLAYED]
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


def read_plays(journal: Path, stamp: str) -> Played:
    """The plays of a journal under a hash; none where there is no journal. A line that was cut is left aside.

    Raises DataError where the journal cannot be read.
    """
    try:
        text = journal.read_text() if journal.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{journal} cannot be read ({error}): remove it to play again") from error
    found: Played = {}
    for line in text.splitlines():
        try:
            told = json.loads(line)
            if told["stamp"] != stamp:
                continue
            curve = tuple((int(n), float(seconds)) for n, seconds in told["play"].pop("curve"))
            play = Play(**told["play"], curve=curve)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        found.setdefault(told["region"], {})[play.contender, play.seed, play.budget] = play
    return found


def append_plays(journal: Path, stamp: str, region: str, plays: Iterable[Play]) -> None:
    """Adds plays to a journal, on a new line: the last one may have been cut."""
    journal.parent.mkdir(parents=True, exist_ok=True)
    lines = [canonical_json({"stamp": stamp, "region": region, "play": asdict(play)}) for play in plays]
    with journal.open("a") as file:
        file.write("\n" + "\n".join(lines) + "\n")
