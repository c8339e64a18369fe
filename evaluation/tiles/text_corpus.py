"""Whether a change of the generator changed any program: hashes of texts, launches, legal values and costs.

    python -m evaluation.tiles.text_corpus
    python -m evaluation.tiles.text_corpus --programs 40 --json > before.json
    python -m evaluation.tiles.text_corpus --programs 40 --against before.json

Of each region and target: the program that the prior chooses and random ones, the same ones by the same revision in any
process. A row's hash is of all of these: parameters, legal values of every field, costs to six digits, texts and
launches; what is refused counts as refused, whatever its words. `--json` has one for each of these three, so that it
shows what of a row has changed; `--against` names the rows that have, and ends with 4. The last lines say what the
corpus does not reach: forms by ways of loading (`copies`: through pointers, asynchronously, since the program has
several stages; elementwise programs and rows are loaded through pointers alone, Gluon's by TMA alone), and fields that
always had one value. What Triton and the assembler of this machine cannot do is no legal value, so that hashes of two
machines compare only where these are the same. Ten programs of each take 35 s of a core. Writes nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from pathlib import Path
from random import Random
from typing import Annotated, Any, Final

import typer
from rich.table import Table
from tinygrad import Tensor, Variable

from evaluation.rows import this_command
from kcg.cli import run_script, table_console
from kcg.compat.assembler import assembler
from kcg.errors import ExitCode, UsageError
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.kernel import TileKernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.targets import TARGETS
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.legal import FIELDS, legal_values, random_parameters, starts
from kcg.kernel.tile.parameters import FORMS, POINTER, TMA, TileParameters
from kcg.kernel.tile.prior import default_parameters
from kcg.kernel.tile.targets import triton_version
from kcg.provenance import provenance
from kcg.types import Target
from kcg.workloads.packed_weights import PackedWeights
from tests.chains import region_of
from tests.kernels import empty

ARCHITECTURES: Final = ("sm_90", "sm_80", "gfx942")
COPIES: Final = "copies"
WAYS: Final = (POINTER, COPIES, TMA)
PARTS: Final = ("values", "costs", "texts")
REFUSED: Final = "refused"

# ---- the regions


def new(*shape: Any, dtype: str = "bfloat16") -> Tensor:
    """A lazy tensor of the corpus' usual format."""
    return empty(*shape, dtype=dtype)


def linear(x: Tensor, columns: int) -> Tensor:
    """A layer with its weight as (columns, terms), and a bias."""
    dtype = "float32" if x.dtype.itemsize == 4 else "bfloat16"
    return x @ new(columns, x.shape[-1], dtype=dtype).T + new(columns, dtype=dtype)


def rms_norm(x: Tensor) -> Tensor:
    """The norm of the last axis, in float32, stored as it came."""
    wide = x.float()
    return (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).cast(x.dtype) * new(x.shape[-1])


def attention(*leading: int, queries: int, keys: int, size: int, **options: Any) -> Tensor:
    """Attention of heads of one size."""
    q, k, v = (new(*leading, count, size) for count in (queries, keys, keys))
    return q.scaled_dot_product_attention(k, v, **options)


def distance(rows: int) -> Tensor:
    """How far each query is behind each key."""
    return Tensor.arange(rows).reshape(rows, 1) - Tensor.arange(rows).reshape(1, rows)


def decode(most: int = 2048) -> Tensor:
    """One query against as many keys of a cache as a variable says; four heads share keys."""
    length = Variable("before", 0, most - 1).bind(most - 1) + 1
    k, v = (new(1, 2, most, 64)[:, :, :length] for _ in range(2))
    return new(1, 8, 1, 64).scaled_dot_product_attention(k, v, enable_gqa=True)


def turned(heads: Tensor) -> Tensor:
    """Pairs of neighbours of (rows, heads, size), turned by tables; heads first."""
    rows, count, size = heads.shape
    pairs = heads.float().reshape(rows, count, size // 2, 2)
    cos, sin = empty(rows, 1, size // 2), empty(rows, 1, size // 2)
    a, b = pairs[..., 0], pairs[..., 1]
    both = Tensor.stack(a * cos - b * sin, a * sin + b * cos, dim=-1)
    return both.reshape(rows, count, size).permute(1, 0, 2).cast(heads.dtype).contiguous()


def projection(rows: int = 512, terms: int = 512, heads: int = 4, size: int = 64) -> tuple[Tensor, ...]:
    """Query, key and value in one matmul, with norms of heads and rotations of the first two in its epilogue."""
    made = linear(new(rows, terms), 3 * heads * size).contiguous().reshape(rows, 3, heads, size)
    return (*(turned(rms_norm(made[:, place])) for place in (0, 1)), made[:, 2].permute(1, 0, 2).contiguous())


def grouped_heads(rows: int = 256, terms: int = 512, size: int = 64) -> tuple[Tensor, ...]:
    """The same by three matmuls of one left side, with fewer keys and values."""
    x = new(rows, terms)
    made = [(x @ new(n, terms).T).contiguous().reshape(rows, n // size, size) for n in (512, 256, 256)]
    return turned(rms_norm(made[0])), turned(rms_norm(made[1])), made[2].permute(1, 0, 2).contiguous()


def grouped(x: Tensor, *columns: int) -> tuple[Tensor, ...]:
    """Products of one left side, each stored."""
    return tuple(linear(x, n).contiguous() for n in columns)


def gate_and_up(x: Tensor, columns: int) -> Tensor:
    """Two products of one left side of which only their product is seen."""
    return ((x @ new(columns, x.shape[1]).T).silu().contiguous() * (x @ new(columns, x.shape[1]).T)).contiguous()


def streams() -> tuple[Tensor, ...]:
    """Text and image, each by a layer of its own."""
    return tuple(linear(new(rows, 256), 512).gelu().contiguous() for rows in (77, 512))


def of_vector(*rows: int) -> tuple[Tensor, ...]:
    """Products of one vector."""
    x = new(1024)
    return tuple(
        (x.matmul(new(n, 1024).T, dtype="float32") + new(n).float()).contiguous() for n in rows
    )  # fmt: skip


def sum_of_products() -> Tensor:
    """The product of a concatenation, as the sum of two, and what becomes of it."""
    x, y, w = new(512, 256), new(512, 512), new(384, 768)
    part = (x @ w[:, :256].T).contiguous()
    return new(512, 384) + (y @ w[:, 256:].T + part + new(384)).gelu()


def row_steps() -> tuple[Tensor, ...]:
    """Steps of rows after each other: a norm that is stored as well, a scale, a mask, softmax, its entropy."""
    x = rms_norm(new(300, 640) + new(300, 640)).contiguous()
    scores = (new(300, 640) > 0).where(x.float() * 0.5, -math.inf)
    return x, scores.softmax(-1).contiguous(), scores.logsumexp(-1).contiguous()


def rotations(rows: int = 96, heads: int = 3, size: int = 64) -> tuple[Tensor, ...]:
    """Query and key of one buffer, with norms of heads and rotations by tables that heads share."""
    made = new(rows, 3 * heads * size).reshape(rows, 3, heads, size)
    cos, sin, found = empty(rows, 1, size // 2, 1), empty(rows, 1, size // 2, 2), []
    for place, factor in ((0, size**-0.5), (1, 1.0)):
        part = made[:, place].float()
        inverse = (part.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        pairs = (part * new(size).float()).reshape(rows, heads, size // 2, 2)
        both = (pairs * cos + pairs.flip(-1) * sin).reshape(rows, heads, size) * inverse * factor
        found.append(both.permute(1, 0, 2).cast("bfloat16").contiguous())
    return tuple(found)


def of_length(most: int = 1024) -> Tensor:
    """So many rows as a variable says."""
    return new(most, 512)[: Variable("n", 1, most).bind(most - 1)]


def residual_of_gate(rows: int = 512, terms: int = 1024, columns: int = 512) -> Tensor:
    """What ends a block of Flux: a residual, and a gate for each column."""
    return new(rows, columns) + new(columns) * linear(new(rows, terms), columns)


def loss(rows: int = 64, vocabulary: int = 50_257) -> Tensor:
    """Cross entropy over a vocabulary, which tinygrad reduces in two steps."""
    labels = empty(rows, dtype="int32")
    return empty(rows, vocabulary).sparse_categorical_crossentropy(labels, reduction="none")


@dataclass(frozen=True)
class Case:
    """A region of the corpus: what makes its tensors, and whether its float32 products may be tf32."""

    make: Callable[[], Tensor | tuple[Tensor, ...]]
    tf32: bool = False

    def read(self) -> tuple[TileKernel, int]:
        """As tile programs see it, and of how many kernels. Raises UnsupportedTile."""
        made = self.make()
        region = region_of(*(made if isinstance(made, tuple) else (made,)))
        return replace(read_region(region), allows_tf32=self.tf32), len(region.kernels)


REGIONS: Final[dict[str, Case]] = {
    "matmul": Case(lambda: new(512, 512) @ new(512, 768)),
    "gelu": Case(lambda: (new(512, 512) @ new(512, 768)).gelu()),
    "product of products": Case(
        lambda: (new(256, 512) @ new(512, 768)).silu() * (new(256, 512) @ new(512, 768))
    ),
    "softmax": Case(lambda: empty(512, 1024).softmax()),
    "layernorm": Case(lambda: new(512, 1024).layernorm()),
    "attention": Case(lambda: attention(1, 4, queries=512, keys=512, size=128)),
    "causal attention": Case(lambda: attention(4, queries=512, keys=512, size=64, is_causal=True)),
    "sum of columns": Case(lambda: empty(4096, 512).sum(0)),
    "matvec": Case(lambda: new(1, 2048) @ new(2048, 4096)),
    "elementwise": Case(lambda: (empty(512, 512) * 2).silu()),
    # matmuls
    "large matmul": Case(lambda: linear(new(2304, 3072), 9216).gelu()),
    "residual of gate": Case(residual_of_gate),
    "short terms": Case(lambda: (new(256, 64) @ new(64, 3136)) + new(256, 3136)),
    "split matmul": Case(lambda: new(64, 8192) @ new(8192, 96)),
    "few rows": Case(lambda: linear(new(16, 2048), 2048)),
    "transposed": Case(lambda: (new(512, 768).T @ new(384, 512).T).T.contiguous()),
    "batches": Case(lambda: new(8, 256, 128) @ new(8, 128, 320)),
    "odd matmul": Case(lambda: linear(new(331, 77), 205).relu()),
    "convolution": Case(
        lambda: empty(4, 64, 28, 28, dtype="float16").conv2d(
            empty(96, 64, 3, 3, dtype="float16"), empty(96, dtype="float16"), padding=1
        ).relu()
    ),
    "symbolic matmul": Case(lambda: linear(of_length(), 768).gelu().contiguous()),
    "float32": Case(lambda: empty(384, 512) @ empty(256, 512).T),
    "tf32": Case(lambda: empty(384, 512) @ empty(256, 512).T, tf32=True),
    "int8": Case(lambda: empty(256, 512, dtype="int8").dot(empty(512, 384, dtype="int8"), dtype="int32")),
    "fp8": Case(lambda: empty(256, 512, dtype="fp8e5m2").dot(empty(512, 384, dtype="fp8e5m2"), dtype="float32")),
    "fp8 weights": Case(lambda: new(256, 512) @ empty(384, 512, dtype="fp8e4m3").cast("bfloat16").T * empty(384)),
    "norm before a matmul": Case(lambda: linear(rms_norm(new(512, 512)), 768)),
    "activation before a matmul": Case(lambda: linear(new(512, 512).silu() * new(512, 512), 768)),
    "projection": Case(projection),
    # several products
    "grouped": Case(lambda: grouped(new(256, 512), 512, 256, 256)),
    "grouped heads": Case(grouped_heads),
    "gate and up": Case(lambda: gate_and_up(new(256, 512), 768)),
    "streams": Case(streams),
    "products of a vector": Case(lambda: of_vector(512, 256, 256)),
    "sum of products": Case(sum_of_products),
    # attention
    "decode": Case(decode),
    "one query": Case(lambda: attention(1, 8, queries=1, keys=4096, size=128)),
    "bias": Case(lambda: attention(2, queries=300, keys=300, size=64, attn_mask=new(300, 300))),
    "window": Case(
        lambda: attention(
            2, queries=384, keys=384, size=64, attn_mask=(distance(384) >= 0) & (distance(384) < 100)
        )
    ),
    "tf32 attention": Case(
        lambda: empty(2, 256, 64).scaled_dot_product_attention(empty(2, 256, 64), empty(2, 256, 64)), tf32=True
    ),
    # rows and reductions
    "row steps": Case(row_steps),
    "rotations": Case(rotations),
    "odd softmax": Case(lambda: new(77, 1003).softmax()),
    "masked softmax": Case(lambda: ((empty(96, 640) > 0).where(new(96, 640).float(), -math.inf)).softmax()),
    "long softmax": Case(lambda: empty(64, 50_257).softmax()),
    "cross entropy": Case(loss),
    "symbolic softmax": Case(lambda: of_length().softmax(-1).contiguous()),
    "sum of all": Case(lambda: empty(1 << 20).square().sum()),
    "sum of rows": Case(lambda: new(8192, 1024).float().sum(1)),
    "largest": Case(lambda: empty(96, 640).argmax(-1)),
    "largest product": Case(lambda: (new(64, 128) @ new(128, 256)).max(1)),
    "symbolic sum": Case(lambda: (of_length() * 3).sum(0)),
    # elements
    "gather": Case(lambda: new(4096, 256)[empty(512, dtype="int32")]),
    "transpose": Case(lambda: (new(512, 768).T + new(768, 512)).contiguous()),
    "pad and join": Case(lambda: new(64, 96).pad(((1, 2), (0, 3)), value=2.5).cat(new(67, 40), dim=1)),
    "integers": Case(lambda: (empty(4096, dtype="int32") // 7) * (empty(4096, dtype="int32") % 5)),
    "running sums": Case(lambda: empty(4, 300).cumsum(1)),
    # packed weights: blocks that are aligned and have minima, and blocks that begin anywhere, of several vectors
    "packed weights": Case(lambda: empty(1, 1024) @ PackedWeights()("w", (256, 1024), "q4_k").T),
    "packed weights of one bit": Case(lambda: empty(1, 4096) @ PackedWeights()("w", (32768, 4096), "q1_0").T),
    "packed weights, vectors": Case(lambda: empty(3, 512) @ PackedWeights()("w", (96, 512), "q4_0").T),
}  # fmt: skip
"""By name. The first ten are what a refactoring of before was judged by."""

# ---- their programs


@dataclass
class Reached:
    """What the programs of a corpus were."""

    ways: Counter[tuple[str, str]] = field(default_factory=Counter)
    values: dict[str, set[Any]] = field(default_factory=dict)

    def add(self, p: TileParameters) -> None:
        """Counts one program."""
        self.ways[p.form, way_of(p)] += 1
        for one in fields(p):
            self.values.setdefault(one.name, set()).add(getattr(p, one.name))

    def lines(self) -> list[str]:
        """What it was, and what it never was."""
        each = [f"{form} × {way} {self.ways[form, way]}" for form in FORMS for way in WAYS if self.ways[form, way]]
        never = [f"{form} × {way}" for form in FORMS for way in WAYS if not self.ways[form, way]]
        one = [name for name, found in self.values.items() if len(found) == 1]
        return [
            f"forms × ways: {', '.join(each)}",
            f"never: {', '.join(never) or 'none'}",
            f"of one value only: {', '.join(one) or 'none'}",
        ]


def way_of(p: TileParameters) -> str:
    """How a program's operands come."""
    return TMA if p.loads == TMA else COPIES if p.num_stages > 1 else POINTER


@dataclass(frozen=True)
class Row:
    """One region on one target."""

    region: str
    target: str
    kernels: int  # 0: it was refused
    programs: int  # that were written
    refused: int  # of those that were drawn
    values: str
    costs: str
    texts: str

    @property
    def key(self) -> str:
        """Of its hashes."""
        return f"{self.region}, {self.target}"

    @property
    def hash(self) -> str:
        """Of all of its parts."""
        return hashlib.sha256("".join(getattr(self, part) for part in PARTS).encode()).hexdigest()


def row_of(name: str, case: Case, target: Target, *, programs: int, reached: Reached) -> Row:
    """The hashes of the prior's program of a region on a target and of so many random ones."""
    parts, made, refused, kernels = {part: hashlib.sha256() for part in PARTS}, 0, 0, 0
    try:
        kernel, kernels = case.read()
        for p in drawn(kernel, target, Random(f"{name} {target.arch}"), programs):
            values = [[one, list(map(str, legal_values(kernel, target, p, one)))] for one in FIELDS]
            parts["values"].update(f"{p.to_json()}{json.dumps(values)}\n".encode())
            parts["costs"].update(f"{predicted_seconds(kernel, target, p):.6g}\n".encode())
            try:
                source = generate_kernel(kernel, target, p)
            except UnsupportedTile:
                refused += 1
                parts["texts"].update(REFUSED.encode())
                continue
            made += 1
            reached.add(p)
            launches = [astuple(launch) for launch in source.launches]
            parts["texts"].update(f"{source.source}{launches!r}{source.workspace_bytes}\n".encode())
    except UnsupportedTile:
        for one in parts.values():
            one.update(REFUSED.encode())
    return Row(name, target.arch, kernels, made, refused, **{part: one.hexdigest() for part, one in parts.items()})


def drawn(kernel: TileKernel, target: Target, rng: Random, programs: int) -> Iterator[TileParameters]:
    """The prior's parameters and random ones. Raises UnsupportedTile where there are none."""
    yield default_parameters(kernel, target)
    if starts(kernel, target):
        for _ in range(programs):
            yield random_parameters(kernel, target, rng)


def rows_of(regions: Iterable[str], targets: Sequence[str], *, programs: int, reached: Reached) -> Iterator[Row]:
    """The rows of regions on targets, one after the other."""
    for name in regions:
        for target in targets:
            yield row_of(name, REGIONS[name], TARGETS[target], programs=programs, reached=reached)


def whole(rows: Iterable[Row]) -> str:
    """The hash of everything."""
    return hashlib.sha256("".join(f"{row.key} {row.hash}\n" for row in rows).encode()).hexdigest()


def changed(rows: Iterable[Row], before: dict[str, dict[str, Any]]) -> list[str]:
    """Which rows are not as before, and what of them."""
    found = []
    for row in rows:
        if (old := before.get(row.key)) is None:
            found.append(f"{row.key}: new")
        elif different := [part for part in PARTS if getattr(row, part) != old[part]]:
            found.append(f"{row.key}: {', '.join(different)}")
    return found


# ---- the command


def main(
    programs: Annotated[int, typer.Option(help="random programs of each region and target")] = 10,
    only: Annotated[list[str] | None, typer.Option(help="these regions")] = None,
    target: Annotated[list[str] | None, typer.Option(help="these architectures")] = None,
    against: Annotated[Path | None, typer.Option(help="what --json wrote of another revision")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> ExitCode:
    """Hash the corpus."""
    regions, targets = tuple(only or REGIONS), tuple(target or ARCHITECTURES)
    for name in (*regions, *targets):
        if name not in REGIONS and name not in TARGETS:
            raise UsageError(f"there is no {name!r}: regions are {', '.join(REGIONS)}")
    before = _read(against, programs) if against is not None else {}
    begin, reached = time.monotonic(), Reached()
    rows = [*rows_of(regions, targets, programs=programs, reached=reached)]
    using = assembler()
    tools = f"Triton {triton_version() or 'none'}, {f'ptxas {using.version}' if using is not None else 'no ptxas'}"
    if as_json:
        entry = {row.key: {"hash": row.hash, **asdict(row)} for row in rows}
        found = {"command": this_command(), **provenance(), "tools": tools, "programs": programs, "hash": whole(rows)}
        sys.stdout.write(f"{json.dumps({**found, 'rows': entry, 'reached': reached.lines()}, indent=1)}\n")
    else:
        _print(rows, regions, targets)
        sys.stdout.write("\n".join([*reached.lines(), ""]))
        sys.stdout.write(f"{tools}; {programs} programs of each, {time.monotonic() - begin:.0f} s\n{whole(rows)}\n")
    if against is not None:
        different = changed(rows, before)
        sys.stderr.write("\n".join([*different, f"{len(different)} of {len(rows)} rows changed", ""]))
        return ExitCode.VERIFICATION_FAILED if different else ExitCode.OK
    return ExitCode.OK


def _read(path: Path, programs: int) -> dict[str, dict[str, Any]]:
    try:
        found = json.loads(path.read_text())
        if found["programs"] != programs:
            raise UsageError(f"{path} has {found['programs']} programs of each: add --programs {found['programs']}")
        rows: dict[str, dict[str, Any]] = found["rows"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is not what --json wrote") from None
    return rows


def _print(rows: Sequence[Row], regions: Sequence[str], targets: Sequence[str]) -> None:
    """A line a region: hashes by target."""
    table, by_key = Table(box=None), {(row.region, row.target): row for row in rows}
    for heading in ("region", "kernels", "programs", "refused", *targets):
        table.add_column(heading, justify="right" if heading in ("kernels", "programs", "refused") else "left")
    for name in regions:
        own = [by_key[name, target] for target in targets]
        counts = [max(row.kernels for row in own), sum(row.programs for row in own), sum(row.refused for row in own)]
        table.add_row(name, *map(str, counts), *(row.hash[:16] if row.programs else REFUSED for row in own))
    table_console().print(table)


if __name__ == "__main__":
    run_script(main)
