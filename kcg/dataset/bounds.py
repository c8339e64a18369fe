"""How large a Parquet file becomes when it is read: refused where it is out of proportion, before it is read.

3 KB can hold a billion equal numbers, a list of them in one row, or one long text that a million rows share. What a
file says of itself at its end is not believed: every page says how many values it holds, and how many bytes.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VALUES, VALUES_PER_BYTE = 1 << 16, 8
"""Of one column, with the items of lists: so many, and so many more for each byte of the file. The published datasets
have 0.2 a byte."""
BYTES, BYTES_PER_BYTE = 64 << 20, 100
"""Of all columns before they are compressed, and of the texts of one column as rows hold them. The published datasets
have 16 a byte, their texts 60."""
AT_ONCE_BYTES = 1 << 30
"""Where a text is stored as what it has in common with the one before it, each may be as long as its page: so many of
them at once that they have no more than this, until they are counted."""
DEEPEST = 16  # structures within one another in the header of a page: there are two
DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 0, 2, 3
_DATA_HEADERS = {DATA_PAGE: 5, DATA_PAGE_V2: 8}  # the field of a page's header that has the number of its values


class OutOfProportion(ValueError):
    """A file would become larger than any of its size that kcg writes."""


@dataclass(frozen=True)
class Reading:
    """How to read a file so that nothing of it gets out of proportion unseen."""

    dictionaries: list[str]  # columns of texts, by their paths: read as dictionaries, which hold a text once
    rows: int  # at once, at most


def check_bounds(file: Any, path: Path) -> Reading:
    """Look at every page of an open `pyarrow.parquet.ParquetFile`. Raises OutOfProportion, or ValueError where a header
    is none."""
    metadata, size = file.metadata, path.stat().st_size
    if metadata.num_rows > VALUES + VALUES_PER_BYTE * size:
        raise OutOfProportion(f"{size:,} bytes that say to hold {metadata.num_rows:,} rows")
    values: dict[str, int] = {}
    total, longest = 0, 1
    dictionaries = _dictionaries(metadata)
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            for number in range(row_group.num_columns):
                chunk = row_group.column(number)
                for page in _pages(content, chunk):
                    values[chunk.path_in_schema] = values.get(chunk.path_in_schema, 0) + page.values
                    total += page.bytes
                    if chunk.physical_type == "BYTE_ARRAY" and chunk.path_in_schema not in dictionaries:
                        longest = max(longest, page.bytes)
                if (count := max(values.get(chunk.path_in_schema, 0), chunk.num_values)) > VALUES + (
                    VALUES_PER_BYTE * size
                ):
                    raise OutOfProportion(f"{size:,} bytes with {count:,} values of {chunk.path_in_schema}")
                if total > BYTES + BYTES_PER_BYTE * size:
                    raise OutOfProportion(f"{size:,} bytes that become {total:,}")
    return Reading(dictionaries, max(1, AT_ONCE_BYTES // longest))


def _dictionaries(metadata: Any) -> list[str]:
    columns = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    texts = {column.path for column in columns if column.physical_type == "BYTE_ARRAY"}
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(number)
            if any(encoding.startswith("DELTA") for encoding in chunk.encodings):
                texts.discard(chunk.path_in_schema)  # of which Arrow makes no dictionary
    return sorted(texts)


@dataclass
class Texts:
    """Makes plain texts of what was read as dictionaries, as long as they are in proportion to their file."""

    size: int  # of the file, in bytes
    spent: int = 0

    def plain(self, batch: Any, keep: Collection[str] = ()) -> Any:
        """A record batch without dictionaries but in the columns to `keep`. Raises OutOfProportion."""
        import pyarrow as pa

        arrays = [
            array if name in keep else self._plain(array)
            for name, array in zip(batch.schema.names, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)

    def _plain(self, array: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        items = array.flatten() if pa.types.is_list(array.type) else array
        packed = pa.types.is_dictionary(items.type)
        if not packed and not pa.types.is_string(items.type) and not pa.types.is_large_string(items.type):
            return array
        if packed:
            lengths = pc.binary_length(items.dictionary.cast(pa.large_binary())).take(items.indices)
        else:
            lengths = pc.binary_length(items)
        self.spent += pc.sum(lengths.cast(pa.int64())).as_py() or 0
        if self.spent > BYTES + BYTES_PER_BYTE * self.size:
            raise OutOfProportion(f"{self.size:,} bytes whose texts become {self.spent:,}")
        if not packed:
            return array
        kind = items.type.value_type
        return array.cast(kind if items is array else pa.list_(kind))


@dataclass(frozen=True)
class _Page:
    values: int  # of a page of data: with nulls and the items of lists
    bytes: int  # before compression


def _pages(content: mmap.mmap, chunk: Any) -> Iterator[_Page]:
    """The pages of a column in a row group, as Parquet's readers walk them."""
    if chunk.num_values <= 0:
        return  # no page of it is read, and its offsets mean nothing
    place = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < place:
        place = chunk.dictionary_page_offset
    end = place + chunk.total_compressed_size
    if not 0 <= place <= end <= len(content):
        raise ValueError("a column is said to lie outside the file")
    while place < end:
        header, place = _Reader(content, place, end).structure()
        kind, unpacked, packed = (header.get(field) for field in (1, 2, 3))
        if not (isinstance(kind, int) and isinstance(unpacked, int) and isinstance(packed, int) and packed >= 0):
            raise ValueError("the header of a page is damaged")
        place += packed
        of_data = header.get(_DATA_HEADERS.get(kind, -1))
        count = of_data.get(1) if isinstance(of_data, dict) else 0
        if not isinstance(count, int) or count < 0 or unpacked < 0 or place > end:
            raise ValueError("the header of a page is damaged")
        yield _Page(count, unpacked)


class _Reader:
    """Thrift's compact protocol, as far as headers of pages need it: numbers and structures; all else is skipped."""

    def __init__(self, content: mmap.mmap, place: int, end: int) -> None:
        self._content, self._place, self._end = content, place, end

    def structure(self, depth: int = 0) -> tuple[dict[int, Any], int]:
        """The fields by their numbers, and where the structure ends. Raises ValueError where it is none."""
        if depth > DEEPEST:
            raise ValueError("the header of a page is nested too deeply")
        fields: dict[int, Any] = {}
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._signed()
            fields[field] = self._value(head & 15, depth)
        return fields, self._place

    def _value(self, kind: int, depth: int) -> Any:
        simple: dict[int, Callable[[], Any]] = {
            1: lambda: True, 2: lambda: False, 3: self._byte, 4: self._signed, 5: self._signed, 6: self._signed,
            7: lambda: self._skip(8), 8: lambda: self._skip(self._unsigned()), 12: lambda: self.structure(depth + 1)[0],
        }  # fmt: skip
        if kind in simple:
            return simple[kind]()
        if kind not in (9, 10):  # maps are in no header
            raise ValueError("the header of a page is damaged")
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._unsigned()
        for _ in range(count):
            if head & 15 in (1, 2):
                self._byte()
            else:
                self._value(head & 15, depth + 1)
        return None

    def _byte(self) -> int:
        if self._place >= self._end:
            raise ValueError("the header of a page has no end")
        self._place += 1
        return self._content[self._place - 1]

    def _unsigned(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 0x80:
            value |= (byte & 0x7F) << shift
            if (shift := shift + 7) > 63:
                raise ValueError("the header of a page holds too large a number")
        return value | byte << shift

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)

    def _skip(self, count: int) -> None:
        if not 0 <= count <= self._end - self._place:
            raise ValueError("the header of a page has no end")
        self._place += count
