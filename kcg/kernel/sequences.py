"""Sequences as nouns: from what was captured, and as canonical JSON that can be read back without trust.

The text is `{"format":2,"asts":[...],"buffers":[[size, dtype, held],...],"calls":[[ast or what, views, reads, writes,
devices, origin, layers],...],"steady":bool,"seen":[...]}`. Every kernel in it is checked as `kcg.kernel.codec` checks
one.
Importing this module imports no tinygrad.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from kcg.compat.partition import Partition
from kcg.compat.sequences import CapturedSequence
from kcg.compat.stretch import PlannedCall, Slot
from kcg.errors import CodecError
from kcg.types import Kernel, Sequence, SequenceBuffer, SequenceCall, SlotBinding, Variables, canonical_json

FORMAT = 2
MAX_BYTES = 64 << 20
MAX_CALLS = 100_000
MAX_SIZE = 1 << 62  # bytes
UNENCODABLE = "not encodable"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_TEXT = 4_096  # characters of a line or a name


def sequences_of_captured(
    captured: Iterable[tuple[CapturedSequence, tuple[tuple[Variables, int], ...]]],
    kernels: dict[Any, Kernel | str] | None = None,
) -> tuple[Sequence, ...]:
    """The sequences that were captured, in their order, each with how often it ran with which values.

    A kernel that cannot be encoded is a call without a kernel. `kernels` is what is known of ASTs, and grows: a kernel,
    or why there is none.
    """
    known = {} if kernels is None else kernels
    return tuple(_sequence_of(one, seen, known) for one, seen in captured)


def _sequence_of(
    captured: CapturedSequence, seen: tuple[tuple[Variables, int], ...], kernels: dict[Any, Kernel | str]
) -> Sequence:
    calls = []
    for call in captured.calls:
        if call.ast is not None and call.ast not in kernels:
            kernels[call.ast] = _kernel_or_reason(call.ast)
        kernel = call.what if call.ast is None else kernels[call.ast]
        why = call.what if call.ast is None else f"{UNENCODABLE}: {kernel}"
        calls.append(
            SequenceCall(
                kernel if isinstance(kernel, Kernel) else None,
                call.views,
                call.reads,
                call.writes,
                "" if isinstance(kernel, Kernel) else _line(why),
                tuple(map(_line, call.devices)),
                _line(call.origin),
                tuple((_line(path), count) for path, count in call.layers),
            )
        )
    buffers = tuple(replace(b, dtype=_stored_name(b.dtype)) for b in captured.buffers)
    named = tuple((tuple((_word(name), value) for name, value in variables), count) for variables, count in seen)
    return Sequence(tuple(calls), buffers, captured.steady, named)


def _line(text: str) -> str:
    """What a program calls something, as `_text` reads it: keys of dictionaries and names of files may be anything."""
    return " ".join(text.encode(errors="replace").decode().splitlines())[:_TEXT]


def _word(name: str) -> str:
    """A variable's name, as `_seen` reads it. A kernel with one that is no plain word is not encodable."""
    if _NAME.fullmatch(name):
        return name
    return f"_{re.sub('[^A-Za-z0-9_]', '_', name)}"[:64]


def _stored_name(dtype: str) -> str:
    from kcg.kernel.codec import DTYPE_NAMES

    return DTYPE_NAMES.get(dtype) or re.sub(r"\W", "_", dtype)


def _kernel_or_reason(ast: Any) -> Kernel | str:
    from kcg.kernel.codec import kernel_of

    try:
        return kernel_of(ast)
    except CodecError as error:
        return str(error)


def partition_of(sequence: Sequence) -> Partition:
    """The calls of a sequence, to be grouped into regions by the rules by which a running program's are.

    `claim` a region to see where it occurs, `left` for the reasons where it is not safe. Regions claimed one after the
    other can be replaced together.
    """
    kernels = [call.kernel.id if call.kernel else None for call in sequence.calls]
    return Partition(kernels, lambda: [_planned(call, sequence) for call in sequence.calls])


def _planned(call: SequenceCall, sequence: Sequence) -> PlannedCall:
    slots = []
    for view in call.views:
        buffer = sequence.buffers[view.buffer]
        slots.append(Slot(view, view.buffer, view.offset, view.size, buffer.size, buffer.dtype, buffer.held))
    return PlannedCall(call, tuple(slots), call.reads, call.writes, call.devices)


def sequence_json(sequence: Sequence) -> str:
    """A sequence as canonical JSON, with all that is known of it."""
    asts: dict[str, int] = {}
    calls = []
    for call in sequence.calls:
        kernel = call.what if call.kernel is None else asts.setdefault(call.kernel.ast_json, len(asts))
        views = [[view.buffer, view.offset, view.size] for view in call.views]
        slots = [list(call.reads), list(call.writes)]
        calls.append([kernel, views, *slots, list(call.devices), call.origin, [list(layer) for layer in call.layers]])
    return canonical_json(
        {
            "format": FORMAT,
            "asts": list(asts),
            "buffers": [[b.size, b.dtype, b.held] for b in sequence.buffers],
            "calls": calls,
            "steady": sequence.steady,
            "seen": [[[list(v) for v in variables], count] for variables, count in sequence.seen],
        }
    )


def sequence_from_json(text: str, *, trusted: bool = False) -> Sequence:
    """The sequence of a text that `sequence_json` wrote, each field checked. Raises only CodecError, in one line.

    `trusted` leaves the kernels' texts as they are, for what a process of kcg's own has just written.
    """
    if not isinstance(text, str) or len(text) > MAX_BYTES:
        raise CodecError("the sequence is no text, or too long")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise CodecError("the sequence is not JSON") from None
    _require(isinstance(value, dict) and set(value) == _FIELDS, "the sequence lacks a field or has one too many")
    _require(value["format"] == FORMAT and type(value["format"]) is int, f"the sequence is not of format {FORMAT}")
    _require(type(value["steady"]) is bool, "steady must be a bool")
    kernels = [_kernel(ast, trusted) for ast in _list(value["asts"], MAX_CALLS, "asts")]
    buffers = tuple(_buffer(row) for row in _list(value["buffers"], 16 * MAX_CALLS, "buffers"))
    calls = tuple(_call(row, kernels, buffers) for row in _list(value["calls"], MAX_CALLS, "calls"))
    _require(bool(calls), "a sequence has calls")
    numbers = [view.buffer for call in calls for view in call.views]
    _require(list(dict.fromkeys(numbers)) == list(range(len(buffers))), "buffers must be numbered as they appear")
    seen = tuple(_seen(row) for row in _list(value["seen"], MAX_CALLS, "seen"))
    return Sequence(calls, buffers, value["steady"], seen)


_FIELDS = {"format", "asts", "buffers", "calls", "steady", "seen"}


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise CodecError(message)


def _list(value: object, most: int, noun: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise CodecError(f"{noun} must be a list of at most {most}")
    return value


def _row(value: object, length: int, noun: str) -> list[Any]:
    if not isinstance(value, list) or len(value) != length:
        raise CodecError(f"a row of {noun} must have {length} entries")
    return value


def _number(value: object, most: int, noun: str) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise CodecError(f"{noun} must be a whole number from 0 to {most}")
    return value


def _text(value: object, noun: str) -> str:
    if not isinstance(value, str) or len(value) > _TEXT or len(value.splitlines()) > 1:
        raise CodecError(f"{noun} must be a line of text")
    return value


def _kernel(ast: object, trusted: bool) -> Kernel:
    if not isinstance(ast, str):
        raise CodecError("an AST must be a text")
    if not trusted:
        from kcg.kernel.codec import decode

        decode(ast)
    return Kernel(ast)


def _buffer(value: object) -> SequenceBuffer:
    size, dtype, held = _row(value, 3, "buffers")
    _require(isinstance(dtype, str) and bool(_NAME.fullmatch(dtype)), "a data type must be a plain word")
    _require(type(held) is bool, "held must be a bool")
    return SequenceBuffer(_number(size, MAX_SIZE, "a buffer's size"), dtype, held)


def _call(value: object, kernels: list[Kernel], buffers: tuple[SequenceBuffer, ...]) -> SequenceCall:
    kernel, views, reads, writes, devices, origin, layers = _row(value, 7, "calls")
    made: Kernel | None = None
    if not isinstance(kernel, str):
        made = kernels[_number(kernel, len(kernels) - 1, "a call's kernel")]
    bound = tuple(_view(view, buffers) for view in _list(views, 4_096, "views"))
    reads, writes = (
        tuple(_number(slot, len(bound) - 1, "a slot") for slot in _list(slots, 4_096, "slots"))
        for slots in (reads, writes)
    )
    names = tuple(_text(device, "a device") for device in _list(devices, 4_096, "devices"))
    what = "" if made else _text(kernel, "what a call is")
    named = tuple(_layer(row) for row in _list(layers, MAX_CALLS, "layers"))
    return SequenceCall(made, bound, reads, writes, what, names, _text(origin, "an origin"), named)


def _layer(value: object) -> tuple[str, int]:
    path, count = _row(value, 2, "layers")
    return _text(path, "a layer"), _number(count, MAX_SIZE, "a count")


def _view(value: object, buffers: tuple[SequenceBuffer, ...]) -> SlotBinding:
    buffer, offset, size = _row(value, 3, "views")
    buffer = _number(buffer, len(buffers) - 1, "a view's buffer")
    view = SlotBinding(buffer, _number(offset, MAX_SIZE, "an offset"), _number(size, MAX_SIZE, "a size"))
    _require(view.offset + view.size <= buffers[buffer].size, "a view ends after its buffer")
    return view


def _seen(value: object) -> tuple[Variables, int]:
    variables, count = _row(value, 2, "seen")
    values = []
    for row in _list(variables, 64, "variables"):
        name, number = _row(row, 2, "variables")
        _require(isinstance(name, str) and bool(_NAME.fullmatch(name)), "a variable's name must be a plain word")
        _require(type(number) is int and abs(number) <= MAX_SIZE, "a variable must be a whole number")
        values.append((name, number))
    return tuple(values), _number(count, MAX_SIZE, "a count")
