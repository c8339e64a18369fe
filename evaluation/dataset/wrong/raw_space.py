"""The raw space of tile programs of a region, before legality: every value of every axis of a form, in any combination.

An axis of a form is a field of `kcg.kernel.tile.legal.FIELDS`. Its values are those that the form fixes, or offers for
the kernel in at least one program: asked of programs at random, drawn from the values known so far, until `QUIET` in a
row added no value. The product of the axes, for each arrangement of output ranges that the form has, is its raw space.
`why_not` says which rules of legality a program breaks. A setting of which the form has no text is no program.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.device import device_of
from kcg.kernel.tile.form import LEAST, Axes, Form
from kcg.kernel.tile.forms import forms_of, plan_of
from kcg.kernel.tile.legal import FIELDS, SIZES, _candidates
from kcg.kernel.tile.parameters import TileParameters
from kcg.types import Target

QUIET: Final = 48
"""Programs in a row that add no value to any axis, before the axes count as complete."""
MOST_ASKED: Final = 2_000  # programs of one arrangement, at most
MOST_TRIES: Final = 2_000  # settings that are drawn until one has a text

TEXT: Final = "no text"  # begins the rules by which the form itself has no program
VALUE, ROOM = "value", "room"  # begin the others: a field has no such value here; a need exceeds what there is


@dataclass(frozen=True)
class Product:
    """The raw programs of one form and one arrangement of output ranges: `values` has those of each of `FIELDS`."""

    form: str
    axes: Axes
    values: tuple[tuple[Any, ...], ...]

    @property
    def count(self) -> int:
        """How many there are."""
        return math.prod(map(len, self.values))

    def program(self, number: int) -> TileParameters:
        """The program of a number below `count`, each of them once. Raises IndexError for any other number."""
        if not 0 <= number < self.count:
            raise IndexError(f"there are {self.count} programs, none of number {number}")
        chosen = {}
        for name, values in zip(FIELDS, self.values, strict=True):
            number, place = divmod(number, len(values))
            chosen[name] = values[place]
        return TileParameters(self.form, self.axes, **chosen)


@dataclass(frozen=True)
class Raw:
    """The raw space of one form: all its products, one after the other."""

    form: str
    products: tuple[Product, ...] = field(repr=False)

    @property
    def count(self) -> int:
        """How many programs there are."""
        return sum(product.count for product in self.products)

    def program(self, number: int) -> TileParameters:
        """The program of a number below `count`, each of them once. Raises IndexError for any other number."""
        if number >= 0:
            for product in self.products:
                if number < product.count:
                    return product.program(number)
                number -= product.count
        raise IndexError(f"there are {self.count} programs")


def raw_spaces(kernel: TileKernel, target: Target, rng: Random) -> tuple[Raw, ...]:
    """The raw space of each form that a kernel's programs may have; `rng` draws the programs that are asked."""
    found = []
    for form in forms_of(kernel, target):
        products = (product_of(kernel, target, form, axes, rng) for axes in form.axes(form.view(kernel)))
        if kept := tuple(product for product in products if product.count):
            found.append(Raw(form.name, kept))
    return tuple(found)


def product_of(kernel: TileKernel, target: Target, form: Form[Any, Any], axes: Axes, rng: Random) -> Product:
    """The axes of one arrangement, see the module."""
    view = form.view(kernel)
    known: dict[str, dict[Any, None]] = {name: dict.fromkeys(form.fixed.get(name, ())) for name in FIELDS}
    first = TileParameters(form.name, axes, tuple(16 for _ in axes)).changed(**LEAST)
    quiet = asked = 0
    while quiet < QUIET and asked < MOST_ASKED:
        asked, quiet = asked + 1, quiet + 1
        for name in FIELDS:
            if name not in form.fixed:
                p = first.changed(**{other: rng.choice([*values]) for other, values in known.items() if values})
                before = len(known[name])
                known[name].update(dict.fromkeys(_offered(form, view, target, p, name)))
                quiet = quiet if len(known[name]) == before else 0
    return Product(form.name, axes, tuple(tuple(known[name]) for name in FIELDS))


def _offered(form: Form[Any, Any], view: Any, target: Target, p: TileParameters, name: str) -> tuple[Any, ...]:
    """What a form offers for a field, beside other values as they are; nothing where it cannot say."""
    try:
        found: tuple[Any, ...] = form.values(view, target, p, name)
        return found
    except (UnsupportedTile, ArithmeticError, LookupError, ValueError):  # of a program that cannot be
        return ()


@dataclass(frozen=True)
class Drawn:
    """Programs of one region, each with the rules that it breaks, and by rule how many settings have no text."""

    programs: tuple[tuple[TileParameters, tuple[str, ...]], ...]
    without_text: dict[str, int]


def draw_of(kernel: TileKernel, target: Target, spaces: Sequence[Raw], count: int, rng: Random) -> Drawn:
    """So many different programs of a kernel, fewer where it has fewer: for each a form, each equally likely, and then
    one of its settings, each equally likely, until it is one of which the form has a text; none twice. A form of which
    `MOST_TRIES` settings in a row have no text, or all of whose settings were drawn, is drawn no more."""
    found: list[tuple[TileParameters, tuple[str, ...]]] = []
    without: Counter[str] = Counter()
    seen: dict[str, set[int]] = {space.form: set() for space in spaces}
    left = [space for space in spaces if space.count]
    while left and len(found) < count:
        space = rng.choice(left)
        for _ in range(MOST_TRIES):
            if len(seen[space.form]) == space.count:
                left.remove(space)
                break
            if (number := rng.randrange(space.count)) in seen[space.form]:
                continue
            seen[space.form].add(number)
            p = space.program(number)
            rules = why_not(kernel, target, p)
            if is_written(rules):
                found.append((p, rules))
                break
            without[class_of(p.form, [rule for rule in rules if rule.startswith(TEXT)])] += 1
        else:
            left.remove(space)
    return Drawn(tuple(found), dict(without))


# ---- which rules a program breaks


def why_not(kernel: TileKernel, target: Target, p: TileParameters) -> tuple[str, ...]:
    """The rules of legality that a program breaks, in the order in which `is_legal` asks for them; none where it is
    legal. One that begins with `TEXT` says that the form cannot write it."""
    return tuple(_broken(kernel, target, p))


def _broken(kernel: TileKernel, target: Target, p: TileParameters) -> Iterator[str]:
    yield from _strange(kernel, target, p, FIELDS[:SIZES])
    try:
        needs = [need for need in plan_of(kernel, target, p).needs(device_of(target)) if need.needed > need.most]
        yield from dict.fromkeys(f"{ROOM}: {need.of}" for need in needs)
    except UnsupportedTile as unsupported:
        yield f"{TEXT}: {unsupported.construct}"
    except (ArithmeticError, LookupError, ValueError) as error:
        yield f"{TEXT}: {type(error).__name__}"
    yield from _strange(kernel, target, p, FIELDS[SIZES:])


def _strange(kernel: TileKernel, target: Target, p: TileParameters, names: Sequence[str]) -> Iterator[str]:
    """The fields that have no such value beside the others."""
    for name in names:
        try:
            candidates = _candidates(kernel, target, p, name)
        except (UnsupportedTile, ArithmeticError, LookupError, ValueError):
            candidates = ()
        if getattr(p, name) not in candidates:
            yield f"{VALUE}: {name}"


def is_written(rules: Sequence[str]) -> bool:
    """Whether the form has a text of a program that breaks these rules."""
    return not any(rule.startswith(TEXT) for rule in rules)


def class_of(form: str, rules: Sequence[str]) -> str:
    """What programs are alike by, where some of them may not be run any more: the form and the first broken rule."""
    return f"{form}; {rules[0]}" if rules else f"{form}; legal"
