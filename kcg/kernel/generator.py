"""The version of the generator of tile programs, `kcg.kernel.tile` and what it reads by,
`kcg.kernel.reading`, which are not loaded to read it."""

from __future__ import annotations

from typing import Final

GENERATOR_VERSION: Final = 5
"""Part of what makes a tile program, see `Toolchain.tile_fingerprint`: by another generator the same parameters are
another program. What was measured before there was a number has 0."""

TEXTS: Final = "ad78702ddb91618a632fe232711f9e72c2435814681658e500386ae347c7b24b"
"""The hash of the texts of this version, over the corpus of `tests/kernel/tile/test_tile_generator.py`."""
