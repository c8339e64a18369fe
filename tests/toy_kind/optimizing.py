"""`python -m tests.toy_kind.optimizing …`: the command `optimize`, with the toy kind among those that it knows.

The last line that it prints is which of the modules of tile programs it has loaded, as JSON.
"""

from __future__ import annotations

import json
import sys

from kcg.kernel.kinds import KINDS, Entry
from kcg.optimize.__main__ import main

if __name__ == "__main__":
    KINDS["c"] = Entry("tests.toy_kind.kind", devices=("CPU",))
    main()
    print(json.dumps([name for name in sys.modules if name.startswith("kcg.kernel.tile")]))
