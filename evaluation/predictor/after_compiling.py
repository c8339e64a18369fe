"""Whether a tile program's time is told better once it is compiled: registers, spills and machine instructions.

    python -m evaluation.predictor.after_compiling compile datasets/h200-tiles --out FOLDER --rows 2400
    python -m evaluation.predictor.after_compiling judge datasets/h200-tiles FOLDER

`compile` draws programs that were drawn uniformly, ran, and are of families that are not frozen: whole regions in an
order by chance, of each region at most 8 of at least 5. It compiles each for the GPU that the row is of, which need not
be here, with Triton and `ptxas` as they are here, and reads the machine code with Triton's `nvdisasm`. Registers,
spills, stack and shared memory are what `ptxas` says. An instruction is counted by its class where it can be reached
(padding and what diverged warps do instead of a shuffle cannot), once in all, and again in the loops around it: a part
of the code that can reach itself, and does more than wait. One line a program; what is there is not compiled again.

`judge` asks trees (LightGBM, `trees.py`) by how much each program's time is off its analytic cost. Folds are by family:
what is said of a program was learned of other families, one sixth of which stop the training. Compared are

- `analytic`: the cost alone;
- `before`: plan, kernel and target, as `trees.py` sees them;
- `registers`: the same and what `ptxas` says, with how many programs share a multiprocessor by it;
- `after`: the same and the instructions;
- `compiled`: registers and instructions without the plan;
- `whole record`: as `before`, trained on every row of the other families, compiled or not; and this corrected once more
  on the compiled rows of the other families, by the numbers of `before` (`whole record, again`), of `registers` or of
  `after`. What is corrected is what was told of each row without its own family.

Figures are as of `left_out.py`: of two programs of a region that differ by more than the noise, how often the faster is
told, over all pairs and over those within 1.5 times of the region's fastest that is asked about; and the time of that
over the time of the program that is told to be fastest (`first_choice`). Means over regions and three seeds. Intervals
hold 95 % of bootstrap samples of regions, `of_families` of samples of families; those of a difference are paired.
Updates evaluation/results/eval_tiles.json, run `after compiling`.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from random import Random
from statistics import median
from typing import Annotated, Any, Final

import numpy as np
import typer

from evaluation.predictor.intervals import ratio_interval
from evaluation.predictor.left_out import HELD, NEAR, OUT, UNASKED, kinds_of, parts_of
from evaluation.predictor.trees import Trees, TreeSettings, tree_rows
from evaluation.rows import rounded, this_command
from evaluation.tiles.same_binaries import code_of
from kcg.campaign.compiling import CompilesOnly
from kcg.cli import command_app, guarded, record_results
from kcg.dataset.choices import UNIFORM
from kcg.dataset.reading import Export, read_export
from kcg.dataset.sources import place_of
from kcg.dataset.splits import families_of
from kcg.errors import DataError, UsageError
from kcg.kernel.program import Program
from kcg.kernel.tile.device import device_of
from kcg.kernel.tile.seen import WHOLE
from kcg.measure import child
from kcg.measure.jobs import CompileJob
from kcg.measure.protocol import PROTOCOL
from kcg.predictor.features import Array
from kcg.predictor.metrics import Floors, floors_of, kernel_scores
from kcg.predictor.training_data import TrainingData, load
from kcg.types import Schedule, ScheduleKind, Status, Target

FEWEST, MOST = 5, 8  # programs of a region
FOLDS: Final = 5
SEEDS: Final = 3
PROGRAMS: Final = "programs.jsonl"
TIMEOUT_S: Final = 120.0  # of compiling one program

app = command_app(no_args_is_help=True)


# ---- the machine code


CLASSES: Final[dict[str, tuple[str, ...]]] = {
    "tensor core": ("HGMMA", "IGMMA", "QGMMA", "BGMMA", "HMMA", "IMMA", "QMMA", "DMMA", "BMMA"),
    "float": (
        "FADD", "FMUL", "FFMA", "FMNMX", "FSEL", "FSET", "FSETP", "FCHK", "FSWZADD", "HADD2", "HMUL2", "HFMA2",
        "HMNMX2", "HSET2", "HSETP2", "DADD", "DMUL", "DFMA", "DSETP", "DMNMX", "FADD32I", "FMUL32I", "FFMA32I",
    ),
    "special": ("MUFU",),
    "conversion": ("F2F", "F2FP", "F2I", "F2IP", "I2F", "I2FP", "I2I", "I2IP", "FRND"),
    "load": ("LDG", "LD"),
    "copy": ("LDGSTS",),
    "TMA": ("UTMALDG", "UTMASTG", "UTMAREDG", "UBLKCP"),
    "store": ("STG", "ST", "ATOM", "ATOMG", "RED", "REDG"),
    "spill": ("LDL", "STL"),
    "shared load": ("LDS", "LDSM"),
    "shared store": ("STS", "STSM", "ATOMS"),
    "constant": ("LDC", "ULDC", "LDCU"),
    "shuffle": ("SHFL", "REDUX", "MOVM"),
    "barrier": (
        "BAR", "DEPBAR", "LDGDEPBAR", "WARPGROUP", "WARPSYNC", "SYNCS", "MEMBAR", "FENCE", "ERRBAR", "CCTL",
        "UTMACMDFLUSH", "UTMACCTL", "NANOSLEEP", "ARRIVES", "ELECT", "VOTE", "VOTEU", "MATCH",
    ),
    "branch": ("BRA", "BRX", "JMP", "JMX", "CALL", "RET", "EXIT", "BSSY", "BSYNC", "BREAK", "KILL", "BPT"),
    "move": (
        "MOV", "UMOV", "CS2R", "S2R", "S2UR", "CS2UR", "R2UR", "P2R", "R2P", "UP2UR", "UR2UP", "NOP", "USETMAXREG",
    ),
}  # fmt: skip
"""Instructions by what does them; every other one is `INTEGER`. Atomic ones count as stores."""
INTEGER: Final = "integer"  # and addresses
CLASS_OF: Final = {opcode: name for name, opcodes in CLASSES.items() for opcode in opcodes}
WIDTHS: Final = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
WIDE: Final = ("load", "copy", "store")  # of these each width of a thread's access is a class, too
NARROWEST: Final = 4  # bytes: all below count together
NAMES: Final = (
    *CLASSES, INTEGER, *(f"{name} of {width} bytes" for name in WIDE for width in (16, 8, 4)),
    *(f"narrow {name}" for name in WIDE),
)  # fmt: skip
DOES_NOTHING: Final = ("barrier", "branch", "move", "constant", INTEGER)  # a loop of these alone waits
DEPTHS: Final = 3  # in no loop, in one, in a loop of a loop or deeper
MULTIPLIED: Final = "multiplied"  # what the tensor core's instructions multiply, of four warps or of one

_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z]\w*)((?:\.\w+)*)\s*([^;]*);")
_ADDRESS = re.compile(r"\b0x([0-9a-f]+)\s*$")
_GROUP_PRODUCT = re.compile(r"\.(\d+)x(\d+)x(\d+)")
_WARP_PRODUCT = re.compile(r"\.(168|88)(\d+)")


@dataclass(frozen=True)
class Instruction:
    """One line of a listing."""

    address: int
    opcode: str
    suffix: str  # ".E.128"
    operands: str
    predicated: bool

    @property
    def kind(self) -> str:
        if self.opcode == "HADD2" and self.suffix.startswith(".F32"):
            return "conversion"  # of a half, as Triton's programs have it
        if self.opcode == "IMAD" and self.suffix.startswith(".MOV"):
            return "move"
        return CLASS_OF.get(self.opcode, INTEGER)

    @property
    def names(self) -> tuple[str, ...]:
        """What it counts as."""
        if self.kind not in WIDE:
            return (self.kind,)
        width = next((WIDTHS[one] for one in self.suffix.split(".") if one in WIDTHS), 4)
        return self.kind, f"narrow {self.kind}" if width < NARROWEST else f"{self.kind} of {width} bytes"

    @property
    def multiplied(self) -> int:
        if self.kind != "tensor core":
            return 0
        if found := _GROUP_PRODUCT.search(self.suffix):
            return math.prod(map(int, found.groups()))
        if found := _WARP_PRODUCT.search(self.suffix):
            rows, columns = (16, 8) if found[1] == "168" else (8, 8)
            return rows * columns * int(found[2])
        return 0


def read_listing(text: str) -> list[Instruction]:
    """The instructions of a listing of `nvdisasm`, whose branches tell addresses."""
    found = (_INSTRUCTION.match(line) for line in text.splitlines())
    return [Instruction(int(one[1], 16), one[3], one[4], one[5], bool(one[2])) for one in found if one is not None]


def edges_of(code: Sequence[Instruction]) -> list[tuple[int, int]]:
    """Which instruction may follow which. What a warp does that has diverged at a shuffle (`BRA.DIV`) is left out; a
    subroutine is reached, what it returns to is what follows its call."""
    found, places = [], {one.address: place for place, one in enumerate(code)}
    for place, one in enumerate(code):
        goes_on = True
        if one.opcode in ("EXIT", "RET", "KILL"):
            goes_on = one.predicated
        elif one.opcode in ("BRA", "JMP", "CALL") and not one.suffix.startswith((".DIV", ".CONV")):
            to = _ADDRESS.search(one.operands)
            if to is not None and int(to[1], 16) in places:
                found.append((place, places[int(to[1], 16)]))
            goes_on = to is None or one.predicated or one.opcode == "CALL" or "," in one.operands
        if goes_on and place + 1 < len(code):
            found.append((place, place + 1))
    return found


def depths_of(code: Sequence[Instruction]) -> Array:
    """(n,) in how many loops each instruction is, at most `DEPTHS` - 1; -1 where it is never reached."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    n, edges = len(code), np.array(edges_of(code), np.int64).reshape(-1, 2)
    graph = coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), (n, n)).tocsr()
    depths = np.full(n, -1)
    if n:
        depths[breadth_first_order(graph, 0, return_predecessors=False)] = 0

    def look(nodes: Array, depth: int) -> None:
        _, part = connected_components(graph[nodes][:, nodes], connection="strong")
        for one in np.flatnonzero(np.bincount(part) > 1):
            loop = nodes[part == one]
            if all(code[place].kind in DOES_NOTHING for place in loop):
                continue
            depths[loop] = depth
            if depth < DEPTHS - 1:
                inside = np.isin(edges, loop)
                entered = edges[inside[:, 1] & ~inside[:, 0], 1]
                look(loop[loop != (entered.min() if len(entered) else loop[0])], depth + 1)

    look(np.flatnonzero(depths == 0), 1)
    return depths


def counts_of(code: Sequence[Instruction]) -> dict[str, list[int]]:
    """How many instructions of each class are in no loop, in one, and deeper."""
    found: dict[str, list[int]] = {}
    for one, depth in zip(code, depths_of(code), strict=True):
        if depth < 0:
            continue
        for name, number in (*((name, 1) for name in one.names), (MULTIPLIED, one.multiplied)):
            if number:
                found.setdefault(name, [0] * DEPTHS)[depth] += number
    return found


def disassembler() -> str:
    """NVIDIA's `nvdisasm`, of Triton's package or of the path. Raises UsageError."""
    spec = importlib.util.find_spec("triton")
    own = Path(spec.origin or "").parent / "backends" / "nvidia" / "bin" / "nvdisasm" if spec is not None else Path()
    if own.is_file():
        return str(own)
    if (found := shutil.which("nvdisasm")) is None:
        raise UsageError("nothing here reads machine code: nvdisasm comes with Triton 3.6 and with the CUDA toolkit")
    return found


def disassembled(cubins: Sequence[bytes], using: str, arch: str) -> list[list[Instruction]]:
    """The machine code of each, all by one process: it takes .4 s to begin. Raises DataError."""
    codes = [code_of(one) for one in cubins]
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(b"".join(codes))
        file.flush()
        # its analysis of data flow takes as long again, and nothing of it is needed
        command = [using, "-ndf", "-b", arch.upper().replace("_", ""), file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DataError(f"nvdisasm failed: {' '.join(done.stderr.split())[:200]}")
    lines, found, begin = read_listing(done.stdout), [], 0
    for code in codes:
        end = begin + len(code)
        found.append([one for one in lines if begin <= one.address < end])
        begin = end
    return found


# ---- compiling


@dataclass(frozen=True)
class Drawn:
    """One program of the record."""

    region_id: str
    variables: str  # as the dataset has them
    schedule: str  # its body
    target: str


def drawn(export: Export, count: int, *, seed: int) -> list[Drawn]:
    """So many programs, by whole regions: see the module."""
    names = ["region_id", "variables", "schedule_body", "schedule_kind", "target", "status", "sampler", "trial"]
    family, most = families_of(export.workloads()), max(one.cores for one in export.targets().values())
    whole = {name for name, one in export.targets().items() if one.cores == most}
    found: dict[tuple[str, str, str], set[str]] = {}
    for row in export.table(PROTOCOL, names).select(names).to_pylist():
        region, variables, body, kind, target, status, sampler, trial = row.values()
        ran = kind == ScheduleKind.TILE and status == Status.OK and sampler == UNIFORM and not trial
        # values of variables would have to be bound: few programs have any
        if ran and target in whole and variables == "[]" and family.get(region, "") not in UNASKED:
            found.setdefault((region, variables, target), set()).add(body)
    random, drawn = Random(f"after compiling {seed}"), list[Drawn]()
    regions = sorted(key for key, bodies in found.items() if len(bodies) >= FEWEST)
    for region, variables, target in random.sample(regions, len(regions)):
        if len(drawn) >= count:
            break
        bodies = sorted(found[region, variables, target])
        chosen = random.sample(bodies, min(MOST, len(bodies)))
        drawn += [Drawn(region, variables, body, target) for body in chosen]
    return drawn


def read_programs(folder: Path) -> list[dict[str, Any]]:
    """What `compile` wrote. A line that was cut is left out."""
    path, found = folder / PROGRAMS, []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def launches_of(programs: Sequence[Program], using: str, arch: str) -> list[list[dict[str, Any]]]:
    """What the compiler says of each launch of some programs."""
    codes = iter(disassembled([one.compiled.binary for made in programs for one in made.launches], using, arch))
    return [
        [
            {
                **dict(one.compiled.report),
                "programs": math.prod(one.compiled.global_size),
                "threads": math.prod(one.compiled.local_size),
                "counts": counts_of(next(codes)),
            }
            for one in made.launches
        ]
        for made in programs
    ]


@app.command("compile")
def compile_(
    source: Annotated[str, typer.Argument(help="a dataset, as kcg.data.load takes it")],
    out: Annotated[Path, typer.Option(help="folder of what is read of the programs")],
    rows: Annotated[int, typer.Option(help="programs that are drawn")] = 2400,
    seed: Annotated[int, typer.Option(help="of the draw")] = 0,
) -> None:
    """Draw programs, compile them, and keep what their machine code says."""
    export = read_export(place_of(source))
    regions, targets, using = export.regions(), export.targets(), disassembler()
    out.mkdir(parents=True, exist_ok=True)
    known = {Drawn(**{f.name: one[f.name] for f in fields(Drawn)}) for one in read_programs(out)}
    todo, done = [one for one in drawn(export, rows, seed=seed) if one not in known], 0
    for fingerprint in sorted({one.target for one in todo}):
        target = targets[fingerprint]
        with CompilesOnly(target, compile_workers=1) as service, (out / PROGRAMS).open("a") as file:
            tools = [service.toolchain.triton, service.toolchain.assembler]
            for region, some in itertools.groupby((one for one in todo if one.target == fingerprint), key=_region_id):
                entries: list[dict[str, Any]] = []
                made: list[Program] = []
                for one in some:
                    job = CompileJob(regions[region], Schedule(ScheduleKind.TILE, one.schedule), target)
                    entries.append({**asdict(one), "toolchain": tools})
                    try:
                        outcome = service.beside(child.compile_job, job, timeout_s=TIMEOUT_S).result()
                    except Exception as error:  # Triton raises whatever it likes: it is kept, and costs this program
                        entries[-1]["failed"] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                        continue
                    made.append(outcome.compiled)
                    entries[-1]["compile_s"] = outcome.compile_s
                begin = time.perf_counter()
                compiled = [one for one in entries if "failed" not in one]
                for entry, launches in zip(compiled, launches_of(made, using, target.arch), strict=True):
                    entry["launches"] = launches
                for entry in entries:
                    entry["read_s"] = (time.perf_counter() - begin) / len(entries)
                    file.write(json.dumps(entry) + "\n")
                file.flush()
                if (done + len(entries)) // 100 > done // 100:
                    typer.echo(f"{done + len(entries):,} of {len(todo):,} programs", err=True)
                done += len(entries)


def _region_id(one: Drawn) -> str:
    return one.region_id


# ---- numbers


REPORT: Final = (
    "registers", "spilled bytes", "stack bytes", "shared bytes", "threads", "launches", "programs at once",
    "beside what was expected", "waves",
)  # fmt: skip
PARTS: Final = ("all", "loops", "nested")
ISSUED: Final = (*CLASSES, INTEGER)
CODE: Final = (
    *(f"{name}, {part}" for name in (*NAMES, MULTIPLIED, "instructions") for part in PARTS),
    *(f"share of {name}" for name in ISSUED), *(f"issued {name}" for name in (*ISSUED, "instructions")),
)  # fmt: skip


def _count(value: float) -> float:
    return math.log2(1.0 + value)


def report_of(launches: Sequence[Mapping[str, Any]], plan: Array, target: Target) -> list[float]:
    """What the assembler says, as `REPORT`; `plan` is what is seen of the program before, as `WHOLE`."""
    device = device_of(target)
    largest = max(launches, key=lambda one: one["programs"] * one["threads"])
    at_once = min(
        device.resident(threads=one["threads"], registers=max(1, one["registers"]), shared_bytes=one["shared_bytes"])
        for one in launches
    )
    expected = 2.0 ** plan[WHOLE.index("programs at once")] - 1.0
    return [
        max(one["registers"] for one in launches),
        *(_count(max(one[name] for one in launches)) for name in ("spilled_bytes", "stack_bytes", "shared_bytes")),
        math.log2(largest["threads"]), len(launches), math.log2(at_once), math.log2(at_once / max(1.0, expected)),
        math.log2(largest["programs"] / (target.cores * at_once)),
    ]  # fmt: skip


def instructions_of(launches: Sequence[Mapping[str, Any]], plan: Array, cost_s: float, target: Target) -> list[float]:
    """The instructions, as `CODE`: logarithms of how many there are, of what share each class has in the loops, and of
    how long it takes to issue all, a class's or any, as a share of the analytic cost: by the plan's steps, four of a
    multiprocessor in each cycle."""
    totals = {name: np.zeros(DEPTHS) for name in (*NAMES, MULTIPLIED)}
    issued, steps = dict.fromkeys(ISSUED, 0.0), 2.0 ** plan[WHOLE.index("steps")]
    tiles = 2.0 ** plan[WHOLE.index("tiles")]
    for one in launches:
        counts = {name: np.array(values, np.float64) for name, values in one["counts"].items()}
        for name, values in counts.items():
            totals[name] += values
        # where loops are nested, the outer one is over tiles
        nested = sum(values[2] for name, values in counts.items() if name in ISSUED) > 0
        own = max(1.0, tiles / max(1, one["programs"])) if nested else 1.0
        times = np.array([1.0, own if nested else steps, own * steps])
        for name in ISSUED:
            issued[name] += one["programs"] * one["threads"] / 32 * float(counts.get(name, np.zeros(DEPTHS)) @ times)
    totals["instructions"] = np.sum([totals[name] for name in ISSUED], 0)
    loops = max(1.0, totals["instructions"][1:].sum())
    cycles = cost_s * target.cores * 4 * 1e6 * (target.clock_limit_mhz or 1e3)
    shares = [math.log2(max(value, 1.0) / cycles) for value in (*issued.values(), sum(issued.values()))]
    return [
        *(_count(values[depth:].sum()) for values in totals.values() for depth in range(DEPTHS)),
        *(float(totals[name][1:].sum()) / loops for name in ISSUED), *shares,
    ]  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """n programs that were compiled and timed."""

    log_s: Array  # (n,) natural logarithm of seconds
    cost: Array  # (n,) the same by the analytic cost
    kernel: Array  # (n,) which region
    run: Array  # (n,) which run measured it
    family: Array  # (n,) a text
    fold: Array  # (n,)
    before: Array  # (n, features)
    report: Array  # (n, len(REPORT))
    code: Array  # (n, len(CODE))


def asked_of(data: TrainingData, export: Export, programs: Sequence[Mapping[str, Any]]) -> tuple[Asked, Array]:
    """The programs that are in the data, and which of its rows they are. Raises DataError where there are too few."""
    columns = ("region_id", "schedule_body", "variables", "target")
    table = export.table(PROTOCOL, columns)
    texts = [table[name].to_pylist() for name in columns]
    compiled: dict[tuple[str, ...], Any] = {
        (one["region_id"], one["schedule"], one["variables"], one["target"]): one["launches"]
        for one in programs
        if "launches" in one
    }
    uniform = np.array([name == UNIFORM for name in data.samplers])[data.sampler] & np.isfinite(data.log_s)
    chosen: dict[tuple[str, ...], int] = {}
    for row in np.flatnonzero(uniform):
        key = tuple(column[data.row[row]] for column in texts)
        if key in compiled:
            chosen.setdefault(key, int(row))
    regions = Counter(int(data.kernel[row]) for row in chosen.values())
    chosen = {key: row for key, row in chosen.items() if regions[int(data.kernel[row])] >= FEWEST}
    if not chosen:
        raise DataError("none of these programs is a timed one of the dataset: compile some of its own first")
    rows, targets = np.array(list(chosen.values())), export.targets()
    parts = parts_of(data.families, FOLDS)
    report, code = [], []
    for key, place in chosen.items():
        plan, target = data.graphs.schedule[place], targets[key[3]]
        report.append(report_of(compiled[key], plan, target))
        code.append(instructions_of(compiled[key], plan, float(np.exp(data.base[place])), target))
    families = np.array(data.families)[data.kernel[rows]]
    asked = Asked(
        data.log_s[rows], data.base[rows], data.kernel[rows], data.run[rows], families,
        np.array([parts[family] for family in families]), tree_rows(data, rows),
        np.array(report), np.array(code),
    )  # fmt: skip
    return asked, rows


# ---- judging


def learned(
    x: Array, residual: Array, of: Mapping[str, Array], *, seed: int, asked: Array | None = None, rounds: int = 600
) -> Array:
    """(n,) what trees say of each row's residual that saw no row of its fold: of those `asked`, else 0. `of` has each
    row's `kernel`, `family` and `fold`."""
    said, asked = np.zeros(len(x)), np.ones(len(x), bool) if asked is None else asked
    settings = replace(TreeSettings(), seed=seed, threads=1, rounds=rounds)
    for fold in np.unique(of["fold"][of["fold"] >= 0]):
        others = sorted(set(of["family"][(of["fold"] != fold) & (of["fold"] >= 0)].tolist()))
        Random(f"{seed} {fold}").shuffle(others)
        stops = np.isin(of["family"], others[::HELD])
        trains = np.isin(of["family"], others) & ~stops
        trees = Trees.train(
            x[trains], residual[trains], of["kernel"][trains], settings, (x[stops], residual[stops])
        )  # fmt: skip
        own = (of["fold"] == fold) & asked
        said[own] = trees.predict(x[own])
    return said


def arms_of(asked: Asked, whole: Array | None, *, seed: int) -> dict[str, Array]:
    """(n,) the log-seconds that each arm says; `whole`: what was told of each row by the whole record."""
    of = {"kernel": asked.kernel, "family": asked.family, "fold": asked.fold}
    compiled = np.concatenate([asked.report, asked.code], 1)
    numbers = {
        "before": asked.before,
        "registers": np.concatenate([asked.before, asked.report], 1),
        "after": np.concatenate([asked.before, compiled], 1),
        "compiled": compiled,
    }
    said = {"analytic": asked.cost}
    for name, x in numbers.items():
        said[name] = asked.cost + learned(x, asked.log_s - asked.cost, of, seed=seed)
    if whole is not None:
        said["whole record"] = whole
        for name, by in (("again", "before"), ("registers", "registers"), ("after", "after")):
            x = np.concatenate([numbers[by], (whole - asked.cost)[:, None]], 1)
            said[f"whole record, {name}"] = whole + learned(x, asked.log_s - whole, of, seed=seed)
    return said


DIFFERENCES: Final = (
    ("registers", "before"), ("after", "before"), ("after", "registers"), ("compiled", "before"),
    ("whole record, registers", "whole record"), ("whole record, after", "whole record"),
    ("whole record, after", "whole record, again"),
)  # fmt: skip


def scores_of(asked: Asked, said: Mapping[str, Array], floors: Floors) -> dict[str, dict[str, dict[int, float]]]:
    """`all`, `near` and `first` -> arm -> region -> its figure (see the module), of regions that have a pair."""
    found: dict[str, dict[str, dict[int, float]]] = {"all": {}, "near": {}, "first": {}}
    for kernel in np.unique(asked.kernel):
        rows = np.flatnonzero(asked.kernel == kernel)
        log_s = asked.log_s[rows]
        for pool, chosen in (("all", rows), ("near", rows[log_s < log_s.min() + np.log(NEAR)])):
            for arm, values in said.items():
                if len(chosen) > 1:
                    one = kernel_scores(int(kernel), values[chosen], asked.log_s[chosen], asked.run[chosen], floors)
                    if one.pairs:
                        found[pool].setdefault(arm, {})[int(kernel)] = one.pairwise
                    if one.pairs and pool == "all":
                        found["first"].setdefault(arm, {})[int(kernel)] = one.best_s / one.top_s[0]
    return found


def with_interval(values: Sequence[float]) -> dict[str, Any]:
    """A mean over regions."""
    interval = ratio_interval([(one, 1.0) for one in values])
    return {"mean": rounded(float(np.mean(values))), "interval": [rounded(end) for end in interval]}


def figures_of(
    asked: Asked, wholes: Sequence[Array | None], floors: Floors, kinds: Mapping[int, str] | None = None
) -> dict[str, Any]:
    """The figures: one of `wholes` for each seed; `kinds` of regions, by which the differences are told again."""
    each = [scores_of(asked, arms_of(asked, whole, seed=seed), floors) for seed, whole in enumerate(wholes)]
    family_of = dict(zip(asked.kernel.tolist(), asked.family.tolist(), strict=True))
    entry: dict[str, Any] = {
        "regions": len(np.unique(asked.kernel)), "rows": len(asked.kernel), "families": len(set(asked.family.tolist())),
        "folds": FOLDS, "seeds": len(wholes), "arms": {}, "differences": {},
    }  # fmt: skip
    for pool, name in (("all", "pairwise"), ("near", "near_best"), ("first", "first_choice")):
        regions = sorted(each[0][pool]["analytic"])
        values = {
            arm: np.array([[one[pool][arm][region] for region in regions] for one in each]) for arm in each[0][pool]
        }  # (seeds, regions)
        entry[f"{name}_regions"] = len(regions)
        for arm, found in values.items():
            entry["arms"].setdefault(arm, {})[name] = with_interval(found.mean(0).tolist())
        for arm, other in DIFFERENCES:
            if arm not in values or other not in values:
                continue
            apart = values[arm] - values[other]
            told = with_interval(apart.mean(0).tolist())
            families = np.array([family_of[region] for region in regions])
            sums = [(float(apart.mean(0)[families == one].sum()), float((families == one).sum()))
                    for one in np.unique(families)]  # fmt: skip
            told["of_families"] = [rounded(end) for end in ratio_interval(sums)]
            told["by_seed"] = [rounded(float(one)) for one in apart.mean(1)]
            if kinds is not None and (arm, other) in (("after", "before"), ("whole record, after", "whole record")):
                of = np.array([kinds[region] for region in regions])
                told["by_kind"] = {
                    kind: {"regions": int((of == kind).sum()), **with_interval(apart.mean(0)[of == kind].tolist())}
                    for kind in np.unique(of).tolist()
                }
            entry["differences"].setdefault(f"{arm} - {other}", {})[name] = told
    return entry


def told_by_all(data: TrainingData, rows: Array) -> Iterator[Array]:
    """For each seed what trees say of these rows that saw the whole record but their fold: see `learned`."""
    parts = parts_of(data.families, FOLDS)
    fold = np.array([parts.get(family, -1) for family in data.families])[data.kernel]
    timed = np.flatnonzero(np.isfinite(data.log_s) & (fold >= 0))
    asked = np.isin(timed, rows)
    x = tree_rows(data, timed)
    residual = data.log_s[timed] - data.base[timed]
    of = {"kernel": data.kernel[timed], "family": np.array(data.families)[data.kernel[timed]], "fold": fold[timed]}
    for seed in range(SEEDS):
        said = dict(zip(timed.tolist(), learned(x, residual, of, seed=seed, asked=asked), strict=True))
        yield data.base[rows] + np.array([said[row] for row in rows.tolist()])


@app.command()
def judge(
    source: Annotated[str, typer.Argument(help="a dataset, as kcg.data.load takes it")],
    folder: Annotated[Path, typer.Argument(help="what compile wrote")],
    out: Annotated[Path, typer.Option(help="the results file")] = OUT,
) -> None:
    """Compare what is told before and after compiling, and write the figures."""
    export = read_export(place_of(source))
    data, floors = load(export.folder, kind=ScheduleKind.TILE), floors_of(export)
    programs = read_programs(folder)
    asked, rows = asked_of(data, export, programs)
    some = data.take(rows)
    kinds = dict(zip(some.kernel.tolist(), kinds_of(some, export).tolist(), strict=True))
    entry = figures_of(asked, list(told_by_all(data, rows)), floors, kinds)
    read = [one for one in programs if "launches" in one]
    entry |= {
        "compiled": len(read), "failed": len(programs) - len(read),
        "spilling": int((asked.report[:, REPORT.index("spilled bytes")] > 0).sum()),
        "compile_s": rounded(median(one["compile_s"] for one in read)),
        "read_s": rounded(median(one["read_s"] for one in read)),
        "toolchains": sorted({", ".join(one["toolchain"]) for one in read}), "command": this_command(),
    }  # fmt: skip
    record_results(out, "after compiling", entry, {})
    typer.echo(json.dumps(entry, indent=1))


if __name__ == "__main__":
    guarded(lambda: app(standalone_mode=False))
