"""What a user names, looked up before any child is started: search, workload or script, preset, files of kernels."""

from __future__ import annotations

from kcg.errors import UnknownName, UsageError
from kcg.optimize.settings import Settings
from kcg.workloads.program import check_program

TINY_BEAM = "tinygrad-beam"  # with a width: tinygrad's own BEAM, which is no strategy of kcg's


def check_names(settings: Settings, device: str) -> None:
    """Raises UnknownName or UsageError for what does not exist."""
    from kcg.search.strategies import STRATEGIES, WIDEST, strategy
    from kcg.workloads.registry import find

    name = settings.search
    if name.partition(":")[0] == TINY_BEAM:
        width = name.partition(":")[2] or "2"
        if not (width.isascii() and width.isdecimal() and 1 <= int(width[:5]) <= WIDEST):
            raise UsageError(f"--search {name}: write a width, for example {TINY_BEAM}:2")
    else:
        offered = [n for n, named in STRATEGIES.items() if not named.needs_policy]
        try:
            strategy(name)
            known = name.partition(":")[0] in offered
        except UnknownName:
            known = False
        if not known:
            raise UnknownName("search strategy", name, [*offered, f"{TINY_BEAM}:2"])
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
