"""The version of the generator of tile programs, `kcg.kernel.tile` and what it reads by,
`kcg.kernel.reading`, which are not loaded to read it."""

from __future__ import annotations

from typing import Final

GENERATOR_VERSION: Final = 4
"""Part of what makes a tile program, see `Toolchain.tile_fingerprint`: by another generator the same parameters are
another program. What was measured before there was a number has 0."""

TEXTS: Final = "c1a467e367b1b6829332590cbb5ce2a31a0f2c226546d3e984ebc6839564f7a0"
"""The hash of the texts of this version, over the corpus of `tests/kernel/tile/test_tile_generator.py`."""
