"""What the name of a campaign's method asks for: `kcg:thorough:5m`, `tinygrad-beam:4`, `random:64`, `raw`."""

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
        budget_s(method)
    elif name == KCG or (name == TINY_BEAM and not of.isdecimal()):
        like = f"{TINY_BEAM}:4, kcg:quick or, with a budget, kcg:thorough:5m"
        raise UsageError(f"method {method!r}: write a width or an effort after it, like {like}")


def effort_and_budget(method: str) -> tuple[str, str]:
    """Of a kcg run, as its command takes them: `thorough` and `5m` of `kcg:thorough:5m`; without a budget, an empty
    one."""
    effort, _, budget = method.removeprefix(f"{KCG}:").partition(":")
    return effort, budget


def budget_s(method: str) -> float:
    """Seconds of a kcg run with a budget of its own; 0 without. Raises UsageError."""
    _, budget = effort_and_budget(method)
    return parse_budget(budget) if budget else 0.0


def turn_of(method: str) -> tuple[str, int, int | None]:
    """How a method is played: BEAM to its own end, the others with a budget, `random:64` or `BUDGET`."""
    name, _, of = method.partition(":")
    if name == FULL_BEAM:
        return method, 0, None
    return name, 0, int(of) if of else BUDGET
