"""Names of a program's variables as a person would choose them: by what they hold, with a number where several are
alike.

While a program is written each variable has a name of its own (`made`), and a buffer that of its slot. When all of it
is there, the variables of each function get their names by the order in which they appear, and buffers those of their
roles. Whatever else is called by a name keeps it alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from keyword import kwlist

MARK = "·"  # of a name until all is written; it is a letter to Python
_WORD = re.compile(rf"([A-Za-z_]\w*(?:{MARK}\d+)?)")
_BUFFER = re.compile(r"p(\d+)(_\w+)?")
_ARGUMENTS = {"mask"}
"""Names of arguments of Triton's functions that variables may have too."""


def made(hint: str, number: int) -> str:
    """The name of a variable until all is written."""
    return f"{hint}{MARK}{number}"


def words_of(text: str) -> list[str]:
    """The names in a text, before all is written."""
    return _WORD.findall(text)


def readable(text: str, buffers: Mapping[int, str]) -> str:
    """A module's text with names that are chosen, of which buffers have these, by slot."""
    given = {f"p{slot}": name for slot, name in buffers.items()}
    parts = [_WORD.split(part) for part in text.split("\n@")]  # each begins a function but the first; words are odd
    kept = {*given.values(), *kwlist}
    for part in parts:
        kept.update(word for word in _without_comments(part) if MARK not in word and word not in given)
    kept -= _ARGUMENTS
    for part in parts:
        names = dict(given)
        taken, last = set(kept), dict[str, int]()
        for place in range(1, len(part), 2):
            word = part[place]
            if (known := names.get(word)) is None:
                if MARK not in word:
                    continue
                known = names[word] = _chosen(word[: word.index(MARK)], given, taken, last)
            part[place] = known
    return "\n@".join("".join(part) for part in parts)


def numbered(words: Iterable[str]) -> list[str]:
    """Names of several things by what they are: the first of each has no number."""
    taken, last = set[str](), dict[str, int]()
    return [_free(word, taken, last) for word in words]


def _chosen(hint: str, given: Mapping[str, str], taken: set[str], last: dict[str, int]) -> str:
    """A name that nothing else has, from what the variable was hinted to be: also `p3_block`, of a buffer."""
    if (of := _BUFFER.fullmatch(hint)) and of[2]:
        hint = given[f"p{of[1]}"] + of[2]
    return _free(hint, taken, last)


def _free(word: str, taken: set[str], last: dict[str, int]) -> str:
    """A word, or the word with the next number, that is not `taken`, and is from now on; `last` has the numbers."""
    number = last.get(word, 0) + 1
    while (name := word if number == 1 else f"{word}{number}") in taken:
        number += 1
    last[word] = number
    taken.add(name)
    return name


def _without_comments(part: list[str]) -> Iterator[str]:
    """The words of code among pieces of a text, of which every second is a word."""
    commented = False
    for place in range(1, len(part), 2):
        before = part[place - 1]
        if "\n" in before:
            commented = False
        if "#" in before:
            commented = before.rindex("#") > before.rfind("\n")
        if not commented:
            yield part[place]
