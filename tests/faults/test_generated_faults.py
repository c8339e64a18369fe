"""Generated programs that one edit made wrong are refused, and what stays right passes, as finalists are judged."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.faults.generated import Mutant
from tests.faults.generated.mutants import MUTANTS
from tests.faults.generated.programs import PROGRAMS, generated
from tests.kernel.tile.running import HAS_TRITON, WITHOUT
from tests.waiting import PATIENCE_S

KEPT = {"softmax", "rms_norm", "residual"}
"""With every kind of fault. The others are slow; `python -m evaluation.measure.fault_catalogue` judges all."""
SOME = [pytest.param(program, marks=() if program in KEPT else pytest.mark.slow) for program in PROGRAMS]
LEAST = 60  # wrong ones that the catalogue promises to have


def of(program: str) -> list[tuple[int, Mutant]]:
    return [(number, mutant) for number, mutant in enumerate(MUTANTS) if mutant.program == program]


def test_the_catalogue_has_what_it_promises() -> None:
    assert sum(mutant.result == "wrong" for mutant in MUTANTS) >= LEAST
    assert len({mutant.id for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.program for mutant in MUTANTS} == set(PROGRAMS)
    programs = Counter(mutant.kind for mutant in MUTANTS if mutant.kind)
    assert all(any(mutant.kind == kind for p in KEPT for _, mutant in of(p)) for kind in programs), programs


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_edit_finds_its_place_and_changes_the_program(program: str) -> None:
    source = generated(program).source
    assert all(mutant.of(source) != source for _, mutant in of(program))


@pytest.fixture(scope="module")
def child() -> Iterator[subprocess.Popen[str]]:
    """A process that interprets cannot compile, so it is none of the tests' own."""
    command = [sys.executable, "-m", "tests.faults.generated.child"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        process.wait(PATIENCE_S)


def judged(child: subprocess.Popen[str], program: str, number: int) -> tuple[str, str]:
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(f"{program}\n{number}\n")
    answer = child.stdout.readline()
    assert answer, f"the process ended: {program}, {number}"
    refused_in, reason = json.loads(answer)
    return refused_in, reason


@pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)
@pytest.mark.parametrize("program", SOME)
def test_wrong_edits_are_refused_and_right_programs_pass(
    child: subprocess.Popen[str], program: str, record_property: Callable[[str, object], None]
) -> None:
    faults = []
    own = Mutant(program, "as_it_is", "", "", "")
    for number, mutant in [(-1, own), *of(program)]:
        refused_in, reason = judged(child, program, number)
        record_property(mutant.id, json.dumps([mutant.result, mutant.kind, refused_in, reason]))
        if mutant.result == "right" and refused_in:
            faults.append(f"{mutant.id} is right and was refused in the {refused_in}: {reason}")
        if mutant.result == "wrong" and not refused_in:
            faults.append(f"{mutant.id} passed ({mutant.kind}). Shows {mutant.shows}")
    assert not faults, "\n".join(faults)
