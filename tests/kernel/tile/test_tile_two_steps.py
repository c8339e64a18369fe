"""Rows that tinygrad reduces in two steps, parts first, as one program: every vocabulary has rows that long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tinygrad import Tensor
from tinygrad.helpers import getenv

from kcg.kernel.chain import Chain
from kcg.kernel.reading.fuse import read_region
from kcg.kernel.regions import Form, candidates_of
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.parameters import ROWS
from kcg.kernel.tile.prior import default_parameters
from kcg.measure.inputs import make_inputs_of_kernels
from kcg.types import Sequence
from tests.chains import sequence_of
from tests.kernel.tile.running import HAS_TRITON, WITHOUT, Case, wrong_of
from tests.kernel.tile.test_tile_compiling import compiled
from tests.kernels import empty
from tests.known_targets import KNOWN_TARGETS
from tests.slow import every

TARGET = KNOWN_TARGETS["sm_90"]
VOCABULARIES = (32_768, 50_257, 65_536, 128_256, 151_936)
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason=WITHOUT)


def rms_norm(x: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()


def loss(x: Tensor) -> Tensor:
    labels = empty(x.shape[0], dtype="int32")
    return x.sparse_categorical_crossentropy(labels, reduction="none")


WHOLE: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: x.softmax(-1),
    "softmax of scaled half": lambda x: (x.half() * 2).softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "layernorm": lambda x: x.layernorm(),
    "rms_norm": rms_norm,
    "logsumexp": lambda x: x.logsumexp(-1),
    "cross entropy": loss,
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(-1),
    "variance": lambda x: x.var(-1),
    "largest probability": lambda x: (x.softmax(-1) * x).sum(-1),
    "any": lambda x: (x > 0).any(-1),
    "all": lambda x: (x > 0).all(-1),
    "integers": lambda x: x.cast("int32").sum(-1),
    "one over the other": lambda x: x.sum(-1) / x.square().sum(-1),
    "along columns": lambda x: x.transpose().contiguous().softmax(0),
}
"""What is made of rows, by kernels that all are of these rows."""


def largest(sequence: Sequence) -> tuple[int, ...]:
    """The calls of the largest candidate of rows that has a program."""
    found = [c for c in candidates_of(sequence) if c.form is Form.ROWS]
    return max((tuple(sorted(c.places[0])) for c in found if read_region(c.region)), key=len, default=())


@pytest.mark.parametrize("made", every(3, WHOLE))
def test_all_kernels_of_such_rows_are_one_region(made: str) -> None:
    for length in VOCABULARIES[:: 1 if made == "softmax" else 3]:
        sequence = sequence_of(WHOLE[made](empty(64, length)))
        of_rows = range(made == "along columns", len(sequence.calls))  # the first one only transposes
        assert len(of_rows) >= 2 and largest(sequence) == tuple(of_rows), length


def test_a_row_alone_is_one_region_too() -> None:
    logits = empty(1, 64, dtype="float16") @ empty(64, 128_256, dtype="float16")
    assert largest(sequence_of(logits.float().softmax(-1))) == (1, 2, 3, 4, 5)
    assert largest(sequence_of(logits.argmax(-1))) == (1, 2, 3, 4)


def test_a_mean_loss_is_two_regions() -> None:
    """As of shorter rows: what all rows are added up to is no value of a row."""
    sequence = sequence_of(empty(64, 50_257).sparse_categorical_crossentropy(empty(64, dtype="int32")))
    found = {tuple(sorted(c.places[0])) for c in candidates_of(sequence)}
    assert {(0, 1, 2, 3), (4, 5)} <= found and len(sequence.calls) == 6


def test_what_is_no_row_or_too_long_a_one_stays_two_kernels() -> None:
    """A sum over columns by one program a column reads everything badly; 64 MB by one program take a millisecond."""
    assert largest(sequence_of(empty(65_536, 64).sum(0))) == ()
    assert len(largest(sequence_of(empty(4096, 4096).sum()))) < 3


def test_parts_that_something_else_reads_are_stored() -> None:
    parts = empty(64, 256, 128).sum(-1).contiguous()
    both = sequence_of(parts.sum(-1), parts * 2)
    assert len(both.calls) == 3 and not any(len(c.region.outputs) < 2 for c in candidates_of(both))


# ---- programs


@pytest.fixture
def short_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """tinygrad reduces rows of 65 elements and more in two steps, 6 rows in at most 10 parts each."""
    monkeypatch.setenv("REDUCEOP_SPLIT_THRESHOLD", "65")
    monkeypatch.setenv("REDUCEOP_SPLIT_SIZE", "6")
    getenv.cache_clear()
    yield
    monkeypatch.undo()
    getenv.cache_clear()


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["whole", "every region"])
def test_programs_of_such_rows_are_right(every: bool, short_rows: None, tmp_path: Path) -> None:
    """Rows that are held, and such that a program goes through in loops."""
    cases: dict[str, Case] = {}
    for number, (name, made) in enumerate(WHOLE.items()):
        sequence = sequence_of(made(empty(6, (72, 80, 90)[number % 3])))
        whole = largest(sequence)
        assert len(whole) >= 2
        for candidate in candidates_of(sequence):
            if not every and tuple(sorted(candidate.places[0])) != whole:
                continue
            kernel = read_region(candidate.region)
            p = default_parameters(kernel, TARGET)
            assert p.form == ROWS
            for reduce_tile in {p.reduce_tile, 16}:
                changed = replace(p, reduce_tile=reduce_tile, read_early=p.read_early and reduce_tile > 16)
                program = generate_kernel(kernel, TARGET, changed, interpreted=True)
                cases[f"{name} {candidate.places} {reduce_tile}"] = Case(candidate.region, program)
    assert len(cases) >= 2 * len(WHOLE) and not wrong_of(cases, tmp_path)


@needs_triton
def test_programs_of_a_vocabulary_are_right(tmp_path: Path) -> None:
    cases = {}
    for name, length in (("softmax", 32_768), ("layernorm", 50_257), ("cross entropy", 50_257), ("argmax", 32_768)):
        sequence = sequence_of(WHOLE[name](empty(2, length)))
        region = sequence.region(*range(len(sequence.calls)))
        kernel = read_region(region)
        program = generate_kernel(kernel, TARGET, default_parameters(kernel, TARGET), interpreted=True)
        cases[name] = Case(region, program)
    assert not wrong_of(cases, tmp_path)


@pytest.mark.slow
@needs_triton
def test_programs_of_a_vocabulary_compile(tmp_path: Path) -> None:
    programs = {}
    for name, length in (("softmax", 128_256), ("log_softmax", 50_257), ("layernorm", 151_936), ("argmax", 128_256)):
        sequence = sequence_of(WHOLE[name](empty(64, length)))
        kernel = read_region(sequence.region(*range(len(sequence.calls))))
        programs[name] = generate_kernel(kernel, TARGET, default_parameters(kernel, TARGET))
    made = compiled(programs, "sm_90", tmp_path)
    assert not any(row["scratch"] for row in made.values())


@pytest.mark.slow
def test_the_reference_of_such_rows_takes_few_terms() -> None:
    """A row's parts are added up once for all of its points: 64 rows of 128,256 are no more terms than are enough."""
    sequence = sequence_of(WHOLE["softmax"](empty(64, 128_256)))
    chain = Chain(sequence.region(*range(len(sequence.calls))))
    (source,) = make_inputs_of_kernels(chain.asts, 1)
    values = {source: np.random.default_rng(1).standard_normal(64 * 128_256, np.float32)}
    points = chain.sample_points(256, np.random.default_rng(1), {})
    (wanted,) = chain.on(values, {}).at(points)
    rows = values[source].reshape(64, -1).astype(np.float64)
    shifted = np.exp(rows - rows.max(1, keepdims=True))
    right = (shifted / shifted.sum(1, keepdims=True)).reshape(-1)[wanted.indices]
    assert len(wanted.values) == 256 and np.allclose(wanted.values, right, rtol=1e-6)
    assert (wanted.error < 1e-3 * np.abs(wanted.values)).all()
