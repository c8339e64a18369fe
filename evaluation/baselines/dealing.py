"""Who does which unit of a campaign, where several processes of one host share it.

All walk the same list, and each takes the next unit that nobody has done and nobody holds. It is held by a lock of the
operating system on a small file in `claims/` beside the journals, which goes with its process, however that ends: no
claim is ever stale, and the files may stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import groupby
from typing import TextIO

from kcg.errors import UsageError
from kcg.files import locked

from .campaign import RETIME, Campaign, Unit
from .method_names import FULL_BEAM, KCG, TINY_BEAM

ALONE = (KCG, TINY_BEAM, FULL_BEAM, RETIME, "raw")


def claim(campaign: Campaign, *what: str, wait: bool = False, shared: bool = False) -> TextIO | None:
    """A file that is locked until it is closed; None where another has it, unless it is to `wait`. `shared` claims are
    in the way only of those that are not."""
    folder = campaign.journal.path.parent / "claims"
    folder.mkdir(exist_ok=True)
    file = (folder / re.sub(r"[^\w.]+", "-", " ".join((campaign.dev, campaign.preset, *what)))).open("a")
    if locked(file, wait=wait, shared=shared):
        return file
    file.close()
    return None


def claim_journal(campaign: Campaign) -> TextIO:
    """The right to write its own file. What another process had written there before it ended is then known too.

    Raises UsageError where another process writes the same file: their lines would be mixed.
    """
    if (file := claim(campaign, campaign.journal.path.name)) is None:
        raise UsageError(f"another process writes {campaign.journal.path}: give each its own --shard, 0/2 and 1/2")
    campaign.journal.read_on()
    return file


def _what(unit: Unit) -> tuple[str, str]:
    return unit.method, unit.region.id if unit.region is not None else ""


def _searched_elsewhere(campaign: Campaign, unit: Unit) -> bool:
    """Whether a kernel is to be timed again, and another process still searches it, or all of them with kcg."""
    return unit.method == RETIME and any(
        other.region in (unit.region, None) and not campaign.done(other) and _held(campaign, other)
        for other in campaign.units()
    )


def _held(campaign: Campaign, unit: Unit) -> bool:
    if (file := claim(campaign, *_what(unit), shared=True)) is not None:  # others may be looking at the same moment
        file.close()
    return file is None


def dealt(campaign: Campaign, units: Iterable[Unit], at_once: int) -> Iterator[list[Unit]]:
    """Units that this process holds until it asks for the next, and that nobody has done. They run at once, so that
    the compilers have work: a method that measures few schedules at a time on `at_once` kernels; a level of BEAM is
    enough for all of them. What others hold is looked at once more in the end: they may have died, or be done."""
    passed: list[Unit] = []
    yield from _walk(campaign, units, at_once, passed)
    yield from _walk(campaign, passed, at_once, [])


def _walk(campaign: Campaign, units: Iterable[Unit], at_once: int, passed: list[Unit]) -> Iterator[list[Unit]]:
    for method, group in groupby(units, key=lambda unit: unit.method):
        most = 1 if method.partition(":")[0] in ALONE else at_once
        while True:
            with ExitStack() as held:
                together: list[Unit] = []
                for unit in group:
                    if campaign.done(unit):
                        continue
                    if _searched_elsewhere(campaign, unit) or (file := claim(campaign, *_what(unit))) is None:
                        passed.append(unit)
                        continue
                    campaign.journal.read_on()  # whoever held it may have done it
                    if campaign.done(unit):
                        file.close()
                        continue
                    held.enter_context(file)
                    together.append(unit)
                    if len(together) == most:
                        break
                if not together:
                    break
                yield together
