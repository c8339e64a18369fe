"""Programs of a result that plain tinygrad cannot make, for a process that is to run them: from the user's cache, else
made again from their schedules.

Their compilers are never loaded there, since one may abort: `python -m kcg.handover.remaking < job.json` is a child
that has a compile pool of its own. What it makes may stay in the user's cache (`kcg.kernel.kinds.KeepsPrograms`), so
that the next start compiles nothing and needs no child. Only the very program that was verified is used: the
same machine code, on the same driver.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kcg.kernel.composed import kinds_in
from kcg.kernel.kinds import KeepsPrograms, kind_named, kind_of, registered, traits_of
from kcg.kernel.program import Program, program_from, program_values
from kcg.measure import isolated
from kcg.types import Kernel, Region, RegionResult, Result, Schedule, Target, Variables

CHILD = "kcg.handover.remaking"
COMPILE_TIMEOUT_S = 120.0  # of one program: a compiler that loops is ended
CHILD_TIMEOUT_S = 120.0  # of the child beside its programs


@dataclass(frozen=True)
class Remade:
    """The programs of a result, by the id of their region, and why others cannot be used."""

    programs: dict[str, Program]
    failed: dict[str, str]


def program_rows(result: Result) -> list[RegionResult]:
    """The regions that such a program is best for, verified, and so the kernels within them."""
    return [r for r in result.deployed if traits_of(r.chosen.schedule).as_program and r.chosen.verification.passed]


def remade(result: Result, *, to_run: bool = True) -> Remade:
    """The programs of a result, to run them on this machine or elsewhere. Raises nothing that is wrong with one of
    them."""
    rows = program_rows(result)
    if rows and (reason := why_not_here(result, to_run=to_run)):
        return Remade({}, {row.region.id: reason for row in rows})
    made: dict[str, Program | str | None] = {row.region.id: _kept(row, result.target) for row in rows}
    if left := [row for row in rows if made[row.region.id] is None]:
        made |= zip((row.region.id for row in left), _in_child(left, result.target), strict=True)
    programs, failed = {}, {}
    for row in rows:
        one = made[row.region.id]
        assert one is not None
        if reason := one if isinstance(one, str) else _why_another(row, one):
            failed[row.region.id] = reason
        elif isinstance(one, Program):
            programs[row.region.id] = one
    return Remade(programs, failed)


def why_not_here(result: Result, *, to_run: bool = True) -> str:
    """What stands against making all such programs of a result on this machine, or running them; empty where nothing
    does."""
    from kcg.compat.standalone import nvidia_driver
    from kcg.measure.device_info import version_of

    rows = program_rows(result)
    own = any(traits_of(row.chosen.schedule).own_assembler for row in rows)
    kinds = dict.fromkeys(name for row in rows for name in kinds_in(row.chosen.schedule))
    tools = [kind_named(name).tools(result.target) for name in kinds]
    if problem := next((one.missing for one in tools if one.missing), ""):
        return problem
    made_with = result.toolchain
    driver = nvidia_driver() if to_run and made_with.driver else made_with.driver
    seen = [("driver", made_with.driver, driver)]
    if own:
        using = next((one.assembler for one in tools if one.assembler), "")
        seen += [("Triton", made_with.triton, version_of("triton")), ("assembler", made_with.assembler, using)]
    for name, wanted, here in seen:
        if wanted != here:
            return f"{name}: they were verified with {wanted!r}, here it is {here!r}: run the search again"
    return ""


def _why_another(row: RegionResult, program: Program) -> str:
    if not row.chosen.binary_hash:
        return "the result does not say which program was verified: run the search again"
    hashes = {program.binary_hash, *(program.at(values).binary_hash for values in _values(row))}
    if row.chosen.binary_hash in hashes:
        return ""
    return "its parameters give another program here than the one that was verified: run the search again"


def _values(row: RegionResult) -> list[Variables]:
    return [end.variables for end in row.ends] or [row.variables]


def _kept(row: RegionResult, target: Target) -> Program | str | None:
    """The program from the user's cache, why it cannot be, or None where it is not there."""
    schedule, (first, *others) = row.chosen.schedule, _values(row)
    if not isinstance(kind := kind_of(schedule), KeepsPrograms):
        return None
    try:
        return kind.kept(row.region, schedule, target, variables=first, also=tuple(others))
    except Exception as error:  # a row that this version's generator does not take
        return _line(error)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _in_child(rows: Sequence[RegionResult], target: Target) -> list[Program | str]:
    """Each row's program, or why there is none."""
    job = {"target": asdict(target), "rows": [_job_of(row) for row in rows]}
    timeout_s = CHILD_TIMEOUT_S + COMPILE_TIMEOUT_S * len(rows)
    try:
        ended = isolated.run_isolated(
            CHILD, job, dev=target.tinygrad_device, timeout_s=timeout_s, name="making the programs", label="programs"
        )
    except isolated.Overdue as error:
        return [str(error)] * len(rows)
    if ended.returncode != 0 or not ended.out:
        return [f"making the programs failed: {ended.last_words}"] * len(rows)
    answer = json.loads(ended.out[-1])
    return [one if isinstance(one, str) else program_from(one) for one in answer["made"]]


def _job_of(row: RegionResult) -> dict[str, Any]:
    region = row.region
    return {
        "kernels": [kernel.ast_json for kernel in region.kernels],
        "args": region.args,
        "outputs": region.outputs,
        "schedule": [row.chosen.schedule.kind, row.chosen.schedule.body],
        "values": _values(row),
    }


# ---- in the child


def main() -> None:
    """Read a job, one line of standard input; answer with the programs, or a line for each that there is none of."""
    job = isolated.receive()
    from kcg.measure.child import compile_job
    from kcg.measure.device_info import usable_cores
    from kcg.measure.jobs import CompileJob
    from kcg.measure.pools import CompilePool

    target = Target(**{**job["target"], "tensor_cores": tuple(job["target"]["tensor_cores"])})
    with tempfile.TemporaryDirectory(prefix="kcg-programs-") as folder:
        initargs = (os.environ["DEV"], os.getpid(), str(Path(folder) / "tinygrad-cache.db"), "", registered())
        pool = CompilePool(initargs, workers=min(usable_cores(), len(job["rows"])), before=lambda: None)
        try:
            made = []
            for row in job["rows"]:
                region, schedule, (first, *others) = _region(row), Schedule(*row["schedule"]), _variables(row)
                one = CompileJob(region, schedule, target, first, tuple(others))
                made.append(pool.submit(compile_job, one, timeout_s=COMPILE_TIMEOUT_S))
            isolated.answer({"made": [_answer(future) for future in made]})
        finally:
            pool.close()


def _region(row: dict[str, Any]) -> Region:
    args = tuple(tuple(slots) for slots in row["args"])
    return Region(tuple(map(Kernel, row["kernels"])), args, tuple(row["outputs"]))


def _variables(row: dict[str, Any]) -> list[Variables]:
    return [tuple((name, value) for name, value in values) for values in row["values"]]


def _answer(future: Future[Any]) -> dict[str, Any] | str:
    try:
        program = future.result().compiled
    except FutureTimeout:
        return f"compiling it did not end within {COMPILE_TIMEOUT_S:g} s"
    except Exception as error:  # a compiler's, or that a child died of it
        return f"it does not compile: {_line(error)}"
    assert isinstance(program, Program)
    return program_values(program)


if __name__ == "__main__":
    # run as a module of the package, so that children do not see this one as __main__
    from kcg.handover.remaking import main as main_of_the_package

    main_of_the_package()
