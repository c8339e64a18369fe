"""What a user names, looked up before any child is started: search, workload or script, preset, files of kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kcg.errors import UnknownName, UsageError
from kcg.optimize.settings import Settings
from kcg.workloads.program import check_program

if TYPE_CHECKING:
    from kcg.search.interface import Observation, Problem, Strategy
    from kcg.search.strategies import Named

TINY_BEAM = "tinygrad-beam"  # with a width: tinygrad's own BEAM, which is no strategy of kcg's


def strategies() -> dict[str, Named]:
    """What `--search` may name, but tinygrad's own BEAM: the strategies of `kcg.search`, and what lies above it."""
    from kcg.search.strategies import STRATEGIES, Named

    return STRATEGIES | {"ppo": Named(lambda _: _ppo, "rollouts of the shipped policy, ranked by the predictor")}


def _ppo(problem: Problem) -> Iterator[Observation]:
    from kcg.kernel.space import KernelSpace
    from kcg.predictor.views import Viewer
    from kcg.search.policy import shipped_policy
    from kcg.search.rollouts import ppo

    space = problem.space
    assert isinstance(space, KernelSpace)
    yield from ppo(shipped_policy(space.target.device), Viewer(space))(problem)


def strategy_of(name: str) -> Strategy:
    """The strategy that `--search` names. Raises UnknownName."""
    from kcg.search.strategies import strategy

    return strategy(name, strategies())


def check_names(settings: Settings, device: str) -> None:
    """Raises UnknownName or UsageError for what does not exist."""
    from kcg.search.strategies import WIDEST
    from kcg.workloads.registry import find

    name = settings.search
    if name.partition(":")[0] == TINY_BEAM:
        width = name.partition(":")[2] or "2"
        if not (width.isascii() and width.isdecimal() and 1 <= int(width[:5]) <= WIDEST):
            raise UsageError(f"--search {name}: write a width, for example {TINY_BEAM}:2")
    else:
        try:
            strategy_of(name)
        except UnknownName:
            raise UnknownName("search strategy", name, [*strategies(), f"{TINY_BEAM}:2"]) from None
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
