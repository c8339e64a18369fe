"""What one optimisation is asked to do: the command line as data, checked before anything starts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from kcg.compat.device import DeviceChoice, check_gpus
from kcg.errors import UnknownName, UsageError
from kcg.fleet.settings import HERE
from kcg.types import ScheduleKind
from kcg.workloads.script import Form, Program, check_program

if TYPE_CHECKING:
    from kcg.kernel.kinds import Space
    from kcg.search.problem import Observation, Problem, Strategy
    from kcg.search.strategies import Named


@dataclass(frozen=True)
class Effort:
    """How long a search goes on where no budget is given, and when it is enough."""

    search_s: float  # seconds of searching; timing tinygrad's own schedules before and judging after it come on top
    least_saving: float  # share of the workload's time that a batch of measurements must be expected to save


EFFORTS: Final = {"quick": Effort(20.0, 1e-3), "normal": Effort(50.0, 1e-4), "thorough": Effort(900.0, 1e-6)}


@dataclass(frozen=True)
class Settings:
    """Settings of one run of `python -m kcg.optimize`."""

    workload: str  # a name, or of a program the path, the module or the code
    preset: str = "auto"
    device: str = "auto"
    search: str = "mcts"  # as `check_search` gives it
    predictor: str = "auto"  # or roofline, or the path of a checkpoint
    effort: str = "normal"
    budget_s: float | None = None  # from start to result; without one the effort says how long it searches
    measurements: int | None = None  # unique binaries; 0 predicts only
    seed: int = 0
    resume: bool = False
    wait: bool = False  # while another optimisation uses the device
    gpus: int = 1  # that measure for the search; the first of them does everything else
    fleet: str = ""  # a scheduler whose hosts measure for the search, too; empty: none
    certificates: Path | None = None  # of a fleet, which TLS needs
    folder: Path = Path("kcg-out")
    form: Form | None = None  # of a program; None: a path of a script, or else a name
    script_args: tuple[str, ...] = ()
    script_check: bool = True  # whether a script runs again at the end, to compare what it leaves
    weights: str = ""  # published ones for the comparison of the whole model, a file or a repository; empty: random
    regions: bool | None = None  # whether regions of several kernels are searched and planned; None: see `Estimates`
    store: str = ""  # a folder, or `hf://owner/name@revision`: looked at first, and added to; empty: none
    kernels: tuple[Path, ...] = ()  # files of hand-written kernels, absolute
    allow_tf32: bool = False  # whether products of tile programs may round float32 operands to tf32
    costs: Path | None = None  # where it is kept how long jobs took here, for the estimates of later runs; None: not
    command: str = ""
    in_memory: bool = False  # whether the workload is of this process, and comes with it: `workload` is but its name

    @property
    def program(self) -> Program | None:
        """The program whose kernels are the workload, which may be absent or no program; None for a named workload."""
        if self.in_memory:
            return None
        from kcg.workloads.registry import WORKLOADS

        if self.form is None and not self.workload.endswith((".py", ".ipynb")):
            is_path = self.workload.startswith(("/", ".")) or Path(self.workload).exists()
            if self.workload in WORKLOADS or not is_path:
                return None
        return Program(self.form or Form.SCRIPT, self.workload, self.script_args)

    @property
    def is_script(self) -> bool:
        return self.program is not None

    @property
    def whole(self) -> str:
        """What is checked as a whole at the end, in a word."""
        return "script" if self.is_script else "function" if self.in_memory else "model"

    @property
    def least_saving(self) -> float:
        """Share of the workload's time that a batch of measurements must be expected to save."""
        return EFFORTS[self.effort].least_saving

    @property
    def budget_text(self) -> str:
        """The budget in words, for the result."""
        parts = [f"{self.budget_s:g} s"] if self.budget_s is not None else [f"{self.effort} effort"]
        if self.measurements is not None:
            parts.append(f"{self.measurements} measurements")
        return ", ".join(parts)


def check_effort(effort: str) -> str:
    """The effort. Raises UnknownName."""
    if effort not in EFFORTS:
        raise UnknownName("effort", effort, list(EFFORTS))
    return effort


def check_measurements(count: int | None) -> int | None:
    """A count of measurements. Raises UsageError where it is negative."""
    if count is not None and count < 0:
        raise UsageError(f"--measurements {count} is negative: 0 predicts only, more allows that many")
    return count


def check_gpu_count(settings: Settings, choice: DeviceChoice) -> None:
    """Raises DeviceError where there are not so many GPUs, UsageError where they would have nothing to do."""
    if settings.gpus > 1:
        check_gpus(choice, settings.gpus)
        _check_spread(settings, f"--gpus {settings.gpus}", "more than one GPU")


def _check_spread(settings: Settings, option: str, what: str) -> None:
    """Raises UsageError where a search measures nothing that can be spread."""
    if settings.measurements == 0 or settings.search.startswith(TINY_BEAM):
        asked = "--measurements 0" if settings.measurements == 0 else f"--search {settings.search}"
        raise UsageError(f"{option}: {asked} has no use for {what}: leave out one of the two")


def check_certificates(fleet: str, certificates: Path | None) -> None:
    """Raises UsageError for certificates without a fleet, which nothing would use."""
    if certificates is not None and not fleet:
        raise UsageError("--certificates: for --fleet tls://HOST:PORT only")


def with_fleet(settings: Settings, choice: DeviceChoice) -> Settings:
    """The settings, where a fleet of this machine is its GPUs. Raises UsageError for a fleet that makes no sense."""
    option = f"--fleet {settings.fleet}"
    check_certificates(settings.fleet, settings.certificates)
    if not settings.fleet:
        return settings
    _check_spread(settings, option, "a fleet")
    if (found := re.fullmatch(HERE, settings.fleet)) is None:
        from kcg.fleet.security import parts_of

        parts_of(settings.fleet)
        return settings
    if settings.certificates is not None:
        raise UsageError(f"--certificates: a fleet of this machine ({settings.fleet}) has none")
    if settings.gpus > 1:
        raise UsageError(
            f"{option} and --gpus {settings.gpus}: both are GPUs of this machine: leave out one of the two"
        )
    if choice.device == "CPU":
        raise UsageError(
            f"{option}: this run and a host on the same CPU would disturb each other's samples: name the scheduler of "
            "other machines, or leave it out"
        )
    there = check_gpus(choice, None)
    wanted = int(found[1]) if found[1] else there
    if there == 1 or not 1 <= wanted <= there:
        gpus = f"{there} GPU{'s' * (there > 1)}"
        raise UsageError(f"{option}: {choice.dev} has {gpus} here, and the first measures anyway: leave it out")
    return replace(settings, fleet="", gpus=wanted)


def check_folder(folder: str) -> Path:
    """The folder of `--report`. Raises UsageError where it has no name, as of a shell variable that is not set."""
    if not folder.strip():
        raise UsageError("--report has no name: write a folder, or . for the current one")
    return Path(folder)


def check_writable(folder: Path, option: str = "--report DIR") -> None:
    """Raises UsageError where a run could not write into `folder`, as far as can be told without making it."""
    nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        raise UsageError(f"cannot write to {folder}: {nearest} refuses; choose another folder with {option}")


def writable_folder(folder: Path) -> Path:
    """Make `folder` and check that a file can be written there. Raises UsageError with what to do."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".kcg-write-test"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UsageError(f"cannot write to {folder}: {reason}; choose another folder with --report DIR") from None
    return folder


# ---- What a user names, looked up before any child is started: search, workload or script, preset, files of kernels.

TINY_BEAM = "tinygrad-beam"  # with a width: tinygrad's own BEAM, which is no strategy of kcg's


DEFAULT_SEARCH: Final = "mcts"  # of every kind


def strategies(kind: str = ScheduleKind.OPTS) -> dict[str, Named]:
    """What `--search` may name for a kind, but tinygrad's own BEAM: the strategies of `kcg.search`, which search every
    kind, and of Opts, for which there are all, what lies above it."""
    from kcg.search.strategies import STRATEGIES, Named

    about = "rollouts of the shipped policy, ranked by the predictor"
    behind = (
        "--search ppo is behind mcts after any number of measurements that was recorded: docs/search.md says how far"
    )
    above = {"ppo": Named(lambda _: _ppo, about, behind=behind)}
    return STRATEGIES | (above if kind == ScheduleKind.OPTS else {})


def _ppo(problem: Problem) -> Iterator[Observation]:
    from kcg.rl.observation import Observer
    from kcg.rl.policy import policy_search, shipped_policy

    space = cast("Space", problem.space)
    yield from policy_search(shipped_policy(space.target.device), Observer(space))(problem)


def strategy_of(name: str) -> Strategy:
    """The strategy that `--search` names. Raises UnknownName."""
    from kcg.search.strategies import strategy

    return strategy(name, strategies())


def check_names(settings: Settings, device: str) -> None:
    """Raises UnknownName or UsageError for what does not exist."""
    from kcg.workloads.registry import find

    check_search(settings.search)
    if settings.in_memory:
        return
    if settings.program is None:
        find(settings.workload, settings.preset, device)
    else:
        check_program(settings.program)
        if settings.preset != "auto":
            raise UsageError(f"--preset {settings.preset}: a script has none; its own arguments come after --")
    if settings.weights:
        check_weights(settings, device, fetch=False)
    for path in settings.kernels:
        if not path.is_file():
            raise UsageError(f"there is no file of kernels {path}")


def check_search(search: str) -> str:
    """What `--search` says, in one way of the several that say the same: where one name stands for all, that name, else
    what is not the default, whatever kinds there are.

    Raises UnknownName or UsageError for a search that does not exist.
    """
    chosen = _searches(search)
    as_one = next((name for name in chosen.values() if _searches(name) == chosen), None)
    return as_one or ",".join(f"{kind}={name}" for kind, name in chosen.items() if name != DEFAULT_SEARCH)


def search_of(search: str, kind: str) -> str:
    """The strategy by which `--search` has the schedules of a kind searched. Raises as `check_search`."""
    return _searches(search).get(kind, DEFAULT_SEARCH)


def worth_of(search: str) -> str:
    """What is said of a search that is known to be behind others; empty of all else."""
    name = search_of(search, ScheduleKind.OPTS)
    named = strategies().get(name.partition(":")[0])
    return f"--search {name} is {named.behind}" if named is not None and named.behind else ""


def _searches(search: str) -> dict[str, str]:
    """Strategy by kind. One name stands for all kinds that have such a strategy; else each part names that of one kind.
    What is not named has the default."""
    from kcg.kernel.kinds import KINDS

    kinds = [str(kind) for kind in KINDS if kind != ScheduleKind.SOURCE]  # all of what is written by hand is tried
    if "=" not in search:
        _check_strategy(search)
        stem = search.partition(":")[0]
        has = {kind for kind in kinds if stem == TINY_BEAM or stem in strategies(kind)}
        return {kind: search if kind in has else DEFAULT_SEARCH for kind in kinds}
    chosen: dict[str, str] = {}
    for part in search.split(","):
        kind, _, name = part.partition("=")
        if not (kind and name):
            raise UsageError(
                f"--search {search}: write one name, or KIND=NAME for each of some kinds: opts=beam,tile=prior"
            )
        if kind not in kinds:
            raise UnknownName("kind of schedule to search", kind, kinds)
        if kind in chosen:
            raise UsageError(f"--search {search}: {kind} has two strategies: name one")
        _check_strategy_of(kind, name)
        chosen[kind] = name
    return {kind: chosen.get(kind, DEFAULT_SEARCH) for kind in kinds}


def _check_strategy_of(kind: str, name: str) -> None:
    """Raises UnknownName or UsageError where a kind has no such strategy."""
    stem = name.partition(":")[0]
    if stem == TINY_BEAM:
        raise UsageError(f"--search {kind}={name}: it is tinygrad's own search of everything: write --search {name}")
    _check_strategy(name)
    if stem not in (there := strategies(kind)):
        raise UsageError(f"--search {kind}={name}: {stem} is for Opts alone; for {kind} there are {', '.join(there)}")


def _check_strategy(name: str) -> None:
    """Raises UnknownName or UsageError where nothing has that name."""
    from kcg.search.strategies import WIDEST

    if name.partition(":")[0] == TINY_BEAM:
        width = name.partition(":")[2] or "2"
        if not (width.isascii() and width.isdecimal() and 1 <= int(width[:5]) <= WIDEST):
            raise UsageError(f"--search {name}: write a width, for example {TINY_BEAM}:2")
    else:
        try:
            strategy_of(name)
        except UnknownName:
            raise UnknownName("search strategy", name, [*strategies(), f"{TINY_BEAM}:2"]) from None


def check_weights(settings: Settings, device: str, *, fetch: bool) -> None:
    """Whether `--weights` are those of the workload's preset; with `fetch` they are downloaded if need be.

    Raises UsageError where the workload takes none, WeightsError for others than its own.
    """
    from kcg.workloads.registry import find

    if settings.is_script:
        raise UsageError(f"--weights {settings.weights}: a script brings its own")
    spec, preset = find(settings.workload, settings.preset, device)
    if spec.published is None:
        raise UsageError(f"--weights {settings.weights}: kcg knows of no published weights of {settings.workload}")
    spec.published.check(preset, settings.weights, fetch)
