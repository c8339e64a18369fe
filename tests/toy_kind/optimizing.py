"""`python -m tests.toy_kind.optimizing …`: the command `optimize`, with the toy kind among those that it knows.

What needs stress is verified after a few launches more than let it be used, since ten thousand take half a minute."""

from __future__ import annotations

from kcg.kernel.kinds import KINDS, Entry
from kcg.measure import stress
from kcg.optimize.__main__ import main

LAUNCHES = stress.PROVISIONAL + 100

if __name__ == "__main__":
    KINDS["c"] = Entry("tests.toy_kind.kind", devices=("CPU",))
    stress.LAUNCHES = LAUNCHES  # type: ignore[misc]
    main()
