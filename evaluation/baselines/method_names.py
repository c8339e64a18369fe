"""What the name of a campaign's method asks for: `kcg:thorough:5m`, `tinygrad-beam:4`, `random:64`, `raw`.

A run of kcg's command may go on where another ended: `kcg:thorough:8m+4m` is `kcg:thorough:8m`, resumed for 4 minutes.
"""

from __future__ import annotations

from kcg.errors import UsageError
from kcg.optimize.settings import check_effort, parse_budget

KCG, TINY_BEAM, FULL_BEAM, TINY_MCTS = "kcg", "tinygrad-beam", "full-beam", "tinygrad-mcts"
EAGER = "eager"  # PyTorch without torch.compile
BUDGET = 256  # measurements of a method that has no end of its own; BEAM=4 takes about as many


def check(method: str) -> None:
    """Raises UsageError where a width, an effort or a budget is missing or is none."""
    name, _, of = method.partition(":")
    if name == KCG and of:
        check_effort(effort_and_budget(method)[0])
        budgets_s(method)
    elif name == KCG or (name == TINY_BEAM and not of.isdecimal()):
        like = f"{TINY_BEAM}:4, kcg:quick or, with a budget, kcg:thorough:5m"
        raise UsageError(f"method {method!r}: write a width or an effort after it, like {like}")


def effort_and_budget(method: str) -> tuple[str, str]:
    """Of a kcg run, as its command takes them: `thorough` and `5m` of `kcg:thorough:5m`; without a budget, an empty
    one. Of one that goes on it is the budget of its last part."""
    effort, _, budget = method.removeprefix(f"{KCG}:").partition(":")
    return effort, budget.rpartition("+")[2]


def part_before(method: str) -> str:
    """The kcg run that this one goes on from; empty where it begins from cold."""
    return method.rpartition("+")[0]


def budgets_s(method: str) -> list[float]:
    """Seconds of each part of a kcg run with budgets of its own; none without. Raises UsageError."""
    budgets = method.removeprefix(f"{KCG}:").partition(":")[2]
    return [parse_budget(budget) for budget in budgets.split("+")] if budgets else []


def turn_of(method: str) -> tuple[str, int, int | None]:
    """How a method is played: BEAM to its own end, the others with a budget, `random:64` or `BUDGET`."""
    name, _, of = method.partition(":")
    if name == FULL_BEAM:
        return method, 0, None
    return name, 0, int(of) if of else BUDGET
