"""Limits of trust that no host exceeds because of its neighbours: one that is to, takes a thousand times as long.

`python -m tests.fleet.lenient MODULE WORDS` is `python -m MODULE WORDS` with them: a driver in a process of its own.
"""

from __future__ import annotations

import runpy
import sys

import pytest

from kcg.fleet import trust

CANARY = 30.0  # times as long as the reference's


def widen(changed: pytest.MonkeyPatch) -> None:
    """Have what drives a fleet in this process admit hosts of a busy CPU."""
    changed.setattr(trust, "CPU_LIMITS", trust.Limits(agree=CANARY, each=3 * CANARY, noise=CANARY))
    changed.setattr(trust, "tolerance", lambda dev: CANARY)


if __name__ == "__main__":
    widen(pytest.MonkeyPatch())
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
