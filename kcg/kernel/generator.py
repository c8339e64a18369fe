"""The version of the generator of tile programs, `kcg.kernel.tile` and what it reads by,
`kcg.kernel.reading`, which are not loaded to read it."""

from __future__ import annotations

from typing import Final

GENERATOR_VERSION: Final = 3
"""Part of what makes a tile program, see `Toolchain.tile_fingerprint`: by another generator the same parameters are
another program. What was measured before there was a number has 0."""

TEXTS: Final = "63e171642a607d502e1ba497dd677994583fd5084a71fe7e299423b55b660042"
"""The hash of the texts of this version, over the corpus of `tests/kernel/tile/test_tile_generator.py`."""
