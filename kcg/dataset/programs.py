"""Compiled programs that wait to be measured, in one file beside a journal: what a machine without a device made.

One SQLite file, WAL, `synchronous=FULL`, one transaction a program: what was added survives `kill -9`, and nothing is
added twice. A program is known by the hash of its contents, so that schedules with the same program share it. It is
packed: code as it is, all else as JSON that is checked when it is read, both compressed by LZMA. Its source text is
left out, which follows from the schedule. Kernels, targets and toolchains are in the journal.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import lzma
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from kcg.dataset.journal import ROW_ERRORS, Chosen, variables_from_json
from kcg.dataset.schema import BUSY_TIMEOUT_S
from kcg.errors import JournalError, ScheduleError, UsageError
from kcg.files import is_disk_full
from kcg.kernel.kinds import parse
from kcg.kernel.program import Compiled, Executable, Program
from kcg.nouns import Document, decode, encode
from kcg.types import Schedule, Variables, canonical_json, content_id

SUFFIX: Final = ".programs"
APPLICATION_ID: Final = 0x6B636770  # "kcgp"
SCHEMA_VERSION: Final = 1
MOST_BYTES: Final = 256 << 20  # of one program unpacked
PRESET: Final = 6  # of LZMA
ID_DIGITS: Final = 32
WAITING = (
    "region_id", "variables", "schedule_kind", "schedule_body", "target", "toolchain", "sampler", "pool", "scores",
    "probability", "compile_s", "program", "run_id",
)  # fmt: skip
_KEY: Final = ("region_id", "variables", "schedule_kind", "schedule_body", "target")
"""What tells two schedules that wait; its hash is the key of a row, so that no index holds the texts again."""


def programs_beside(journal: Path) -> Path:
    """Where the programs of a journal are."""
    return journal.with_name(journal.name + SUFFIX)


@dataclass(frozen=True)
class Waiting:
    """A schedule that was drawn for a target, and compiled, or will be by who measures it."""

    region_id: str
    variables: Variables
    schedule: Schedule
    target: str  # fingerprint of what will measure it
    toolchain: str  # fingerprint of what compiled it; its driver is that of the measuring machine
    sampler: str
    chosen: Chosen
    compile_s: float
    program: str  # id; empty: it is to be compiled where it is measured
    run_id: str


class ProgramFile:
    """One open file of programs; use `open`, and close it or use it in a `with`. It may be shared by threads."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self._connection = path, connection
        self._lock = threading.RLock()

    @classmethod
    def open(cls, path: Path, *, create: bool = True) -> ProgramFile:
        """Raises UsageError where there is none and `create` is false, JournalError where it is something else."""
        if not create and not path.exists():
            raise UsageError(
                f"there are no compiled programs at {path}: run generate --compile-only with the same --out"
            )
        with _translated(path):
            connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
            made = cls(path, connection)
            try:
                made._prepare()
            except BaseException:
                connection.close()
                raise
        return made

    def _prepare(self) -> None:
        connection = self._connection
        (named,), (version,) = (
            connection.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
        )
        if not named and not connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
            with self._transaction():
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                connection.execute("CREATE TABLE IF NOT EXISTS programs(id TEXT PRIMARY KEY, packed BLOB NOT NULL)")
                columns = ", ".join(WAITING)
                connection.execute(f"CREATE TABLE IF NOT EXISTS waiting({columns}, identity BLOB UNIQUE NOT NULL)")
        elif (named, version) != (APPLICATION_ID, SCHEMA_VERSION):
            raise JournalError(f"{self.path} is no file of programs that this kcg reads: name another file")
        connection.execute("PRAGMA journal_mode=WAL").fetchone()
        connection.execute("PRAGMA synchronous=FULL")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock, _translated(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the file; safe to call twice."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> ProgramFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, waiting: Waiting, made: Executable | None) -> bool:
        """Keep a schedule, with what it was compiled to; False where it is there. `waiting.program` is filled in."""
        packed = None if made is None else pack(made)
        program = "" if packed is None else hashlib.sha256(packed[0]).hexdigest()[:ID_DIGITS]
        with self._transaction():
            if packed is not None:
                self._connection.execute("INSERT OR IGNORE INTO programs VALUES(?, ?)", (program, packed[1]))
            return self._insert(_row(replace(waiting, program=program)))

    def _insert(self, row: Sequence[Any]) -> bool:
        marks = ", ".join("?" * (len(WAITING) + 1))
        values = dict(zip(WAITING, row, strict=True))
        identity = bytes.fromhex(content_id([values[name] for name in _KEY]))
        return (
            self._connection.execute(f"INSERT OR IGNORE INTO waiting VALUES({marks})", (*row, identity)).rowcount == 1
        )

    def waiting(self) -> list[Waiting]:
        """Every schedule, in the order in which they were added. Raises JournalError where a row cannot be trusted."""
        with self._lock, _translated(self.path):
            rows = self._connection.execute(f"SELECT {', '.join(WAITING)} FROM waiting ORDER BY rowid").fetchall()
        found = []
        for number, row in enumerate(rows):
            try:
                found.append(_waiting(row))
            except (*ROW_ERRORS, ScheduleError) as error:
                raise JournalError(f"{self.path}: row {number} cannot be trusted ({error}): restore a copy") from error
        return found

    def program(self, name: str) -> Executable:
        """The program of an id. Raises JournalError where it is not what was written."""
        with self._lock, _translated(self.path):
            row = self._connection.execute("SELECT packed FROM programs WHERE id=?", (name,)).fetchone()
        if row is None:
            raise JournalError(f"{self.path} has no program {name}: restore a copy")
        try:
            return unpack(row[0], name)
        except (*ROW_ERRORS, lzma.LZMAError, EOFError) as error:
            raise JournalError(f"{self.path}: program {name} is damaged ({error}): restore a copy") from error

    def counts(self) -> tuple[int, int]:
        """Schedules, and the bytes of the file that holds them."""
        with self._lock, _translated(self.path):
            (schedules,) = self._connection.execute("SELECT count(*) FROM waiting").fetchone()
            (pages,), (size,) = (self._connection.execute(f"PRAGMA page_{n}").fetchone() for n in ("count", "size"))
        return int(schedules), int(pages) * int(size)

    def copy_from(self, other: ProgramFile) -> None:
        """Take all that another file has; what is here already once."""
        with other._lock, _translated(other.path), self._transaction():
            for row in other._connection.execute("SELECT id, packed FROM programs"):
                self._connection.execute("INSERT OR IGNORE INTO programs VALUES(?, ?)", row)
            for row in other._connection.execute(f"SELECT {', '.join(WAITING)} FROM waiting ORDER BY rowid"):
                self._insert(row)


def merge_programs(journals: Sequence[Path], out: Path) -> tuple[int, int]:
    """Join the programs beside journals into those beside `out`, if any has some; the schedules and the bytes of all.
    Raises UsageError where there are some beside `out`."""
    some = [path for path in map(programs_beside, journals) if path.exists()]
    if not some:
        return 0, 0
    if (target := programs_beside(out)).exists():
        raise UsageError(f"{target} exists: name a new file to merge into")
    with ProgramFile.open(target) as joined:
        for path in some:
            with ProgramFile.open(path, create=False) as other:
                joined.copy_from(other)
        return joined.counts()


def _row(waiting: Waiting) -> tuple[Any, ...]:
    chosen = waiting.chosen
    return (
        waiting.region_id, canonical_json(waiting.variables), str(waiting.schedule.kind), waiting.schedule.body,
        waiting.target, waiting.toolchain, waiting.sampler, chosen.pool, chosen.scores, chosen.probability,
        float(waiting.compile_s), waiting.program, waiting.run_id,
    )  # fmt: skip


def _waiting(row: Sequence[Any]) -> Waiting:
    values = dict(zip(WAITING, row, strict=True))
    probability, compile_s = values.pop("probability"), float(values.pop("compile_s"))
    if not all(isinstance(text, str) for text in values.values()):
        raise TypeError("a text is none")
    return Waiting(
        values["region_id"],
        variables_from_json(values["variables"]),
        parse(values["schedule_kind"], values["schedule_body"]),
        values["target"],
        values["toolchain"],
        values["sampler"],
        Chosen(values["pool"], values["scores"], probability),
        compile_s,
        values["program"],
        values["run_id"],
    )


# ---- a program as bytes


def pack(made: Executable) -> tuple[bytes, bytes]:
    """A program as bytes, of which its id is the hash, and the same packed."""
    codes: list[bytes] = []

    def bare(compiled: Compiled) -> Compiled:
        codes.extend((compiled.binary, compiled.image))
        return replace(compiled, binary=b"", image=b"", source="")

    if isinstance(made, Program):
        launches = tuple(replace(launch, compiled=bare(launch.compiled)) for launch in made.launches)
        head = {"program": encode(replace(made, launches=launches))}
    else:
        head = {"compiled": encode(bare(made))}
    text = canonical_json({**head, "codes": [len(code) for code in codes]}).encode()
    whole = len(text).to_bytes(4, "big") + text + b"".join(codes)
    return whole, lzma.compress(whole, preset=PRESET)


def unpack(packed: bytes, name: str) -> Executable:
    """The program of an id. Raises ValueError or another of `ROW_ERRORS`, LZMAError or EOFError where it is not what
    was packed."""
    whole = lzma.LZMADecompressor().decompress(packed, max_length=MOST_BYTES)
    if hashlib.sha256(whole).hexdigest()[:ID_DIGITS] != name:
        raise ValueError("it does not hash to its id")
    size = int.from_bytes(whole[:4], "big")
    head: Mapping[str, Any] = json.loads(whole[4 : 4 + size])
    rest, codes = whole[4 + size :], []
    for length in head["codes"]:
        codes.append(rest[:length])
        rest = rest[length:]
    places = iter(codes)

    def filled(compiled: Compiled) -> Compiled:
        return replace(compiled, binary=next(places), image=next(places))

    if "compiled" in head:
        found: Compiled = decode(head["compiled"], Compiled, "compiled", of=Document())
        return filled(found)
    program: Program = decode(head["program"], Program, "program", of=Document())
    launches = tuple(replace(launch, compiled=filled(launch.compiled)) for launch in program.launches)
    return replace(program, launches=launches)


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    """SQLite's errors as one line of ours."""
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL:
            raise JournalError(f"disk full: {path}: free some space and resume; what was added is kept") from error
        raise JournalError(f"{path} cannot be used ({error}): what was added is kept") from error
    except OSError as error:
        if is_disk_full(error):
            raise JournalError(f"disk full: {path}: free some space and resume; what was added is kept") from error
        raise
