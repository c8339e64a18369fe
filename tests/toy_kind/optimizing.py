"""`python -m tests.toy_kind.optimizing …`: the command `optimize`, with the toy kind among those that it knows."""

from __future__ import annotations

from kcg.kernel.kinds import KINDS, Entry
from kcg.optimize.__main__ import main

if __name__ == "__main__":
    KINDS["c"] = Entry("tests.toy_kind.kind", devices=("CPU",))
    main()
