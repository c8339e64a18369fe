"""Rows of an export's Parquet files as nouns, and columns as plain values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kcg.dataset.columns import CLOCK, measurements_schema, rounded_clock
from kcg.dataset.records import Record, launch_from_json, status_and_reason, variables_from_json
from kcg.types import CacheState, Measurement, Schedule, Status

TIMINGS = "timings.parquet"


def values_of(array: Any) -> list[Any]:
    """A column as Python values; None for what is missing, and for a text that is none."""
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        texts = values_of(array.dictionary)
        return [texts[i] if i is not None and 0 <= i < len(texts) else None for i in values_of(array.indices)]
    if pa.types.is_primitive(array.type) and not array.null_count:
        return list(array.to_numpy(zero_copy_only=False).tolist())
    try:
        return list(array.to_pylist())
    except UnicodeDecodeError:
        return [_text(value) for value in array]


def _text(value: Any) -> str | None:
    try:
        return str(value) if value.is_valid else None
    except UnicodeDecodeError:
        return None


class Timings:
    """Some rows of timings, each taken apart once."""

    def __init__(self, table: Any, numbers: Sequence[int]) -> None:
        self._place = {number: i for i, number in enumerate(numbers)}
        samples = table["samples_s"].combine_chunks()
        self._samples = samples.flatten().to_numpy(zero_copy_only=False).tolist()  # a missing sample is NaN
        self._ends = samples.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).cumsum().tolist()
        self._launches = values_of(table["launch"].combine_chunks())
        self._hashes = values_of(table["binary_hash"].combine_chunks())
        names = [name for name in table.column_names if name.startswith(CLOCK)]
        self._names = [name.removeprefix(CLOCK) for name in sorted(names)]
        self._readings = list(zip(*(values_of(table[name].combine_chunks()) for name in sorted(names)), strict=True))
        self._known: dict[int, tuple[Any, ...]] = {}

    def of(self, number: int) -> tuple[Any, ...]:
        """Samples, binary, launch and readings. Raises one of `ROW_ERRORS`."""
        if number not in self._known:
            i = self._place.get(number)
            if i is None or self._launches[i] is None:
                raise ValueError(f"there is no row {number} in {TIMINGS}, or it has no launch")
            samples = tuple(self._samples[self._ends[i - 1] if i else 0 : self._ends[i]])
            if not all(0 <= s < math.inf for s in samples):
                raise ValueError(f"the samples of row {number} of {TIMINGS} are no times")
            readings = zip(self._names, self._readings[i] if self._readings else (), strict=False)
            clocks = tuple((name, rounded_clock(value)) for name, value in readings if value is not None)
            binary = self._hashes[i]
            self._known[number] = (
                samples,
                "" if binary is None else binary.hex(),
                launch_from_json(self._launches[i]),
                clocks,
            )
        return self._known[number]


def record_of(row: Sequence[Any], timings: Timings) -> Record:
    """The inverse of what `MeasurementColumns` makes. Raises one of `ROW_ERRORS`."""
    if None in row:
        raise TypeError(f"{measurements_schema().names[row.index(None)]} is missing")
    (
        region_id, kind, target, toolchain, status, cache_state, variables, input_recipe, reason, sampler, run_id,
        body, protocol, trial, recorded, timing, checked, early_stop, compile_s,
    ) = row  # fmt: skip
    samples_s, binary_hash, launch, clocks = timings.of(timing)
    status, reason = status_and_reason(status, reason)
    made = Measurement(
        region_id, Schedule(kind, body), target, toolchain, protocol, status, CacheState(cache_state),
        variables_from_json(variables), input_recipe, samples_s, reason, binary_hash, checked, early_stop, sampler,
        compile_s, launch, run_id, trial, clocks,
    )  # fmt: skip
    if made.status == Status.OK and not samples_s:
        raise ValueError(f"status ok, and row {timing} of {TIMINGS} has no samples")
    return Record(made, float(recorded))


def medians(values: Any, lengths: Any) -> Any:
    """The median of each run of `values`: (timings,) float64, NaN for a run of length 0."""
    import numpy as np

    found = np.full(len(lengths), np.nan)
    starts = np.cumsum(lengths) - lengths
    for length in np.unique(lengths[lengths > 0]):
        which = np.flatnonzero(lengths == length)
        found[which] = np.median(values[starts[which, None] + np.arange(length)].astype(np.float64), axis=1)
    return found
