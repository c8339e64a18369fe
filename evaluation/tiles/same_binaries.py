"""Whether programs are the same machine code by another generator: where only names, comments or headers differ.

    python -m evaluation.tiles.same_binaries > before.json
    python -m evaluation.tiles.same_binaries --against before.json

Of each region of the text corpus: the prior's choice of each form, compiled for sm_90. What is compared is the code of
the cubin (its `.text` sections): names of arguments, lines and the text itself are not in it. It ends with 4 where one
differs. Two programs take some two seconds of a core. Writes nothing.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from evaluation.tiles.text_corpus import REGIONS
from kcg.cli import run_script
from kcg.errors import ExitCode, ScheduleError
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.targets import target_named
from kcg.kernel.tile.compile import compiled_launch
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.legal import starts

ARCHITECTURE: Final = "sm_90"
SECTION: Final = struct.Struct("<IIQQQQIIQQ")  # of the table of a 64-bit ELF file


def main(
    regions: Annotated[list[str] | None, typer.Argument(help="of the corpus; by default all")] = None,
    against: Annotated[Path | None, typer.Option(help="what was printed before")] = None,
) -> None:
    """Compile, and print the hash of each program's machine code, or which of them differ."""
    before = {} if against is None else json.loads(against.read_text())
    found = dict(hashes(regions or list(REGIONS)))
    if against is None:
        typer.echo(json.dumps(found, indent=1))
        return
    both = found.keys() & before.keys()
    differ = sorted(name for name in both if found[name] != before[name])
    typer.echo(f"{len(both)} programs, {len(both) - len(differ)} of the same machine code")
    for name in differ:
        typer.echo(f"other code: {name}")
    sys.exit(ExitCode.VERIFICATION_FAILED if differ or not both else ExitCode.OK)


def hashes(names: list[str]) -> Iterator[tuple[str, str]]:
    """The hash of each program that compiles, by its region, form and place among the prior's choices."""
    target = target_named(ARCHITECTURE)
    for name in names:
        try:
            kernel, _ = REGIONS[name].read()
        except UnsupportedTile:
            continue  # no program is what the corpus says of it
        seen: set[str] = set()
        for place, parameters in enumerate(starts(kernel, target)):
            if parameters.form in seen:
                continue
            seen.add(parameters.form)
            made = generate_kernel(kernel, target, parameters)
            try:
                code = b"".join(code_of(compiled_launch(made, launch, target).cubin) for launch in made.launches)
            except ScheduleError as error:
                typer.echo(f"{name} {parameters.form}: {error}", err=True)
                continue
            yield f"{name} {parameters.form} {place}", hashlib.sha256(code).hexdigest()


def code_of(cubin: bytes) -> bytes:
    """The machine code of a cubin: its sections whose name begins with `.text`, in their order."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, named = struct.unpack_from("<HHH", cubin, 0x3A)
    rows = [SECTION.unpack_from(cubin, table + number * size) for number in range(count)]
    names_at = rows[named][4]
    found = []
    for name, _, _, _, offset, length, *_ in rows:
        begin = names_at + name
        if cubin[begin : cubin.index(b"\0", begin)].startswith(b".text"):
            found.append(cubin[offset : offset + length])
    assert found, "a cubin without code"
    return b"".join(found)


if __name__ == "__main__":
    run_script(main)
