"""The nouns as JSON, and back with every field checked: for results, what a run keeps beside them, and what travels.

Floats are exact. NaN and the infinities, which JSON lacks, are the strings `"nan"`, `"inf"` and `"-inf"`. Bytes are
base64. A region names its kernels by id; whoever writes regions keeps the kernels' texts beside them.
"""

from __future__ import annotations

import base64
import json
import math
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from kcg.errors import ResultError
from kcg.types import Kernel, Region

T = TypeVar("T")

LARGEST = 2**63 - 1
"""Of an integer: what is beyond is no count, no size and no seed."""

NEWER: Final = frozenset({("Toolchain", "generator")})
"""What is newer than the first documents without a version: in messages of a fleet, and in what journals keep of it."""

_COLOR = re.compile(r"\x1b\[[0-9;]*[mK]")
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Malformed(Exception):
    """What is wrong at which place of the document."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where or 'the document'}: {what}")


def noun_to_json(value: Any) -> str:
    """One noun as text, for what is kept outside of a result; `noun_from_json` reads it back."""
    return json.dumps(encode(value), allow_nan=False)


def noun_from_json(noun: type[T], text: str, *, may_lack: frozenset[tuple[str, str]] = NEWER) -> T:
    """A dataclass from the text of `noun_to_json`, every field checked but those that it `may_lack`. Raises ResultError
    where it is not one."""
    try:
        made: T = decode(json.loads(text, parse_constant=no_constant), noun, "", of=Document(may_lack=may_lack))
    except (Malformed, ValueError, TypeError, RecursionError) as error:
        raise ResultError(f"not a {noun.__name__}: {error}") from None
    return made


def encode(value: Any) -> Any:
    """JSON of a noun: dataclasses are objects, tuples and sets lists, a region names its kernels by id."""
    if isinstance(value, Kernel):
        return value.id
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple | list):
        return [encode(v) for v in value]
    if isinstance(value, frozenset):
        return [encode(v) for v in sorted(value)]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    return str(value) if isinstance(value, str) else int(value)


@cache
def hints_of(noun: type) -> dict[str, Any]:
    """The fields of a dataclass and what annotates them."""
    return get_type_hints(noun)


@dataclass(frozen=True)
class Document:
    """What decoding a part needs of the whole."""

    kernels: Mapping[str, Kernel] = field(default_factory=dict)  # by id
    later: frozenset[tuple[str, str]] = frozenset()  # (noun, field) that the version of the document does not have
    may_lack: frozenset[tuple[str, str]] = frozenset()  # (noun, field) that it may have or not: it has no version


def decode(value: Any, hint: Any, where: str, *, of: Document) -> Any:
    """`value` as the type that `hint` annotates. `where` is the path in the document, for the message. Raises
    Malformed, or ValueError or TypeError of the noun itself."""
    if get_origin(hint) in (Union, types.UnionType):  # of None and one other
        if value is None:
            return None
        (hint,) = (h for h in get_args(hint) if h is not type(None))
    origin = get_origin(hint)
    if hint is Kernel:
        if not isinstance(value, str) or value not in of.kernels:
            raise Malformed(where, f"no kernel {shown(value)} under asts")
        return of.kernels[value]
    if is_dataclass(hint) and isinstance(hint, type):
        hints = {n: h for n, h in hints_of(hint).items() if (hint.__name__, n) not in of.later}
        if not isinstance(value, dict):
            raise Malformed(where, f"an object is expected, not {shown(value)}")
        hints = {n: h for n, h in hints.items() if n in value or (hint.__name__, n) not in of.may_lack}
        if hint is Region and "args" not in hints:
            value = _without_wiring(value, where)
        same_names(set(value), set(hints), where)
        return hint(**{n: decode(value[n], h, f"{where}.{n}".lstrip("."), of=of) for n, h in hints.items()})
    if origin is tuple or origin is frozenset:
        if not isinstance(value, list):
            raise Malformed(where, f"a list is expected, not {shown(value)}")
        inner = get_args(hint)
        same = origin is frozenset or (len(inner) == 2 and inner[1] is Ellipsis)
        wanted = [inner[0]] * len(value) if same else list(inner)
        if len(wanted) != len(value):
            raise Malformed(where, f"{len(wanted)} entries are expected, not {len(value)}")
        return origin(decode(v, h, f"{where}[{i}]", of=of) for i, (v, h) in enumerate(zip(value, wanted, strict=True)))
    if hint is float:
        if isinstance(value, str) and value in _NON_FINITE:
            return _NON_FINITE[value]
        if type(value) in (int, float):
            return _float(value, where)
        raise Malformed(where, f"a number is expected, not {shown(value)}")
    if hint is bytes:
        if not isinstance(value, str):
            raise Malformed(where, f"base64 is expected, not {shown(value)}")
        return base64.b64decode(value, validate=True)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        if value not in list(hint):
            raise Malformed(where, f"{shown(value)} is no {hint.__name__}")
        return hint(value)
    if type(value) is not hint:  # not isinstance: True is no number of calls
        raise Malformed(where, f"{hint.__name__} is expected, not {shown(value)}")
    if isinstance(value, int) and abs(value) > LARGEST:
        raise Malformed(where, "the number is too large")
    return value


def _without_wiring(value: dict[str, Any], where: str) -> dict[str, Any]:
    """A region of a file from before schema 9, which had `wiring` and only ever one kernel."""
    if value.get("wiring") != []:
        raise Malformed(f"{where}.wiring", "an empty list is expected")
    return {name: part for name, part in value.items() if name != "wiring"}


def _float(value: float, where: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):  # such as 1e999
        raise Malformed(where, "the number is too large")
    return number


def kernels_of(asts: Any) -> dict[str, Kernel]:
    """The kernels of a document by id, from their texts under `asts`. Raises Malformed for an id that its text does not
    have; what the texts hold is not looked at."""
    if not isinstance(asts, dict) or not all(isinstance(text, str) for text in asts.values()):
        raise Malformed("asts", "an object of texts is expected")
    kernels = {name: Kernel(text) for name, text in asts.items()}
    for name, kernel in kernels.items():
        try:
            same = kernel.id == name
        except UnicodeEncodeError:  # lone surrogates
            same = False
        if not same:
            raise Malformed(f"asts.{shown(name)}", "the text of the kernel was changed")
    return kernels


def same_names(found: set[str], wanted: set[str], where: str) -> None:
    """Raises Malformed where the fields of an object are not those that are wanted."""
    if missing := sorted(wanted - found):
        raise Malformed(where, f"the field {missing[0]!r} is missing")
    if unknown := sorted(found - wanted):
        raise Malformed(where, f"the field {shown(unknown[0])} is unknown")


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads`: an object whose fields appear once. Raises Malformed."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Malformed("", "a field appears twice")
    return found


def no_constant(name: str) -> Any:
    """For `json.loads`: NaN and the infinities are no JSON. Raises Malformed."""
    raise Malformed("", f"{name} is not JSON")


def plain(text: str, most: int = 120) -> str:
    """A foreign text on one line of so many characters at most, without what could steer a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)[:most]


def uncoloured(text: str) -> str:
    """A text without the colours that tinygrad and compilers give their words."""
    return _COLOR.sub("", text)


def printable(text: str) -> str:
    """A text on one line, of which what could steer a terminal is spelled as Python spells it: `\\x1b`."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shown(value: Any) -> str:
    """A foreign value in an error message: ASCII, one line, short."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = ascii(value) if not isinstance(value, int) or abs(value) < 10**40 else "a huge number"
    return text if len(text) <= 60 else text[:57] + "..."
