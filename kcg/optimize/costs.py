"""How many times what is expected of them jobs take on a machine: learned in each run, and kept for the next.

What a comparison or the check of the whole will take is worked out from a run's own measurements (`Estimates`). It is
off by a factor that belongs to the machine and the device, which only runs tell. The file of a target has, for each
kind of job, the seconds that were expected and those that it took, so that ratios of few seconds count little. What is
wrong here changes when something is done, never what is verified.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from kcg.errors import DataError
from kcg.files import read_limited, whole
from kcg.types import Target, canonical_json, content_id

log = logging.getLogger(__name__)

JUDGING, WHOLE = "judging alone", "whole"
"""Re-timing and verifying one region, with no search beside it; the check of the whole, by what is checked: `whole
model`."""
FORMAT: Final = 1
FADES: Final = 1 / 2  # what earlier runs count beside the next, each time
TRUSTED_S: Final = 20.0  # what earlier runs count at most: a run that judged as long counts as much
MOST_BYTES: Final = 1 << 16
FACTORS: Final = (0.1, 10.0)  # a ratio beyond these is no experience but an accident


@dataclass
class Taken:
    """What some jobs were expected to take, and what they took, in seconds."""

    expected_s: float = 0.0
    spent_s: float = 0.0

    def add(self, expected_s: float, spent_s: float) -> None:
        self.expected_s += expected_s
        self.spent_s += spent_s

    def slower(self, before: float, weight_s: float) -> float:
        """So many times what is expected they take, where `before` is what is known otherwise and counts as so many
        seconds."""
        return (before * weight_s + self.spent_s) / (weight_s + self.expected_s)


def file_of(folder: Path, target: Target) -> Path:
    """Where what is known of a target stands."""
    return folder / f"{content_id(target.fingerprint)[:16]}.json"


def read(path: Path) -> dict[str, Taken]:
    """What earlier runs came to, by the kind of job; nothing where there is no file, or none that can be used."""
    try:
        found = json.loads(read_limited(path, most_bytes=MOST_BYTES))
        if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
            return {}
        taken = {str(kind): Taken(**seconds) for kind, seconds in found.items()}
    except (OSError, ValueError, TypeError, RecursionError, DataError):
        return {}
    return {kind: one for kind, one in taken.items() if _is_usable(one)}


def keep(path: Path, now: Mapping[str, Taken]) -> None:
    """Add what a run came to to what is known, which fades. What cannot be written costs the next run's estimates."""
    both = read(path)
    for kind, one in now.items():
        if _is_usable(one):
            before = both.get(kind, Taken())
            both[kind] = Taken(FADES * before.expected_s + one.expected_s, FADES * before.spent_s + one.spent_s)
    if not both:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as temporary:
            temporary.write_text(canonical_json({"format": FORMAT, **{k: asdict(v) for k, v in both.items()}}))
    except OSError as error:
        log.debug("what jobs took is not kept: %s", error)


def known_before(earlier: Mapping[str, Taken], kind: str, otherwise: float, weight_s: float) -> tuple[float, float]:
    """How many times what is expected jobs of a kind take by earlier runs, and as how many seconds that counts; without
    any `otherwise` and `weight_s`."""
    one = earlier.get(kind)
    if one is None:
        return otherwise, weight_s
    return one.slower(otherwise, weight_s), min(weight_s + one.expected_s, TRUSTED_S)


def _is_usable(one: Taken) -> bool:
    seconds = (one.expected_s, one.spent_s)
    if not all(isinstance(s, int | float) and math.isfinite(s) and s > 0 for s in seconds):
        return False
    return FACTORS[0] <= one.spent_s / one.expected_s <= FACTORS[1]
