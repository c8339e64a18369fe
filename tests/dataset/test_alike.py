"""The split by classes of alike kernels: no class is in two parts, Flux's are held out, and what is near is known."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tinygrad import Tensor

from kcg.dataset.alike import CONTRACTION, ELEMENTWISE, REDUCTION, likeness_of, near_any
from kcg.dataset.check import verify
from kcg.dataset.columns import ADDED, NEAR, SPLIT_COLUMNS, values_of_regions
from kcg.dataset.export import CHECKSUMS, export, read_export
from kcg.dataset.journal import Journal
from kcg.dataset.splits import PARTS, TEST, TRAIN, VALIDATION, make_splits
from kcg.dataset.stats import stats
from kcg.errors import CodecError
from kcg.files import sha256_of
from kcg.kernel.codec import kernel_of
from kcg.kernel.reading.kernel import read_kernel
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.types import Kernel, Region, Workload, WorkloadCall
from tests.calls import calls_of
from tests.dataset.test_journal import TARGET, TOOLCHAIN, Run, measurement
from tests.dataset.test_splits import by_id, kernel, matmul, workload
from tests.kernels import all_examples, empty, example_ast


def classes(*kernels: Kernel) -> int:
    return len({likeness_of(k) for k in kernels})


# -- classes


def test_what_is_alike_is_one_class_whatever_it_computes() -> None:
    product = matmul(64, 128, 256)
    a, b, bias = empty(64, 128), empty(128, 256), empty(256)
    alike = [kernel((a @ b).relu()), kernel((a @ b + bias).exp()), kernel((a @ b) * 2), matmul(256, 128, 64)]
    assert classes(product, *alike, matmul(60, 120, 250), kernel(empty(64, 128) @ empty(256, 128).T)) == 1
    assert (likeness_of(product).form, likeness_of(product).extents) == (CONTRACTION, (6, 8, 0, 7))
    assert likeness_of(product).dtypes == ("float32",)
    rows = kernel(empty(64, 256).sum(1))
    views = [empty(64, 256).min(1), empty(8, 8, 256).max(2), empty(8, 8, 2, 128).sum((2, 3)), empty(256, 64).sum(0)]
    assert classes(rows, *map(kernel, views)) == 1 and likeness_of(rows).form == REDUCTION
    one = kernel(empty(64, 256) + 1)
    ones = [empty(64, 256) + 2, empty(256, 64).exp(), empty(16384).sin(), empty(64, 256).T.contiguous()]
    assert classes(one, *map(kernel, ones)) == 1 and likeness_of(one).form == ELEMENTWISE
    batches = likeness_of(kernel(empty(4, 16, 32) @ empty(4, 32, 64)))
    assert (batches.form, batches.extents) == (CONTRACTION, (4, 6, 2, 5))
    convolution = likeness_of(kernel(empty(2, 16, 16, 16).conv2d(empty(32, 16, 3, 3), padding=1)))
    assert (convolution.form, convolution.extents) == (CONTRACTION, (5, 9, 0, 7))


def test_form_data_types_and_rounded_extents_distinguish_kernels() -> None:
    different = [
        matmul(64, 128, 256),
        matmul(64, 128, 256, "float16"),
        matmul(64, 256, 128),
        matmul(64, 128, 512),
        kernel(empty(64, 128) @ empty(128)),
        kernel(empty(64, 256).sum(1)),
        kernel(empty(64, 512).sum(1)),
        kernel(empty(64, 256) + 1),
        kernel(empty(64, 256).half()),
    ]
    assert classes(*different) == len(different)


def test_near_is_a_step_of_rounding_in_every_extent_and_nothing_else() -> None:
    here = likeness_of(matmul(1024, 1448, 1024))
    for size, near in ((1448, True), (1449, True), (363, True), (362, False), (2896, True), (2897, False)):
        assert here.is_near(likeness_of(matmul(1024, size, 1024))) is near, size
    assert here.is_near(likeness_of(matmul(512, 2048, 2048))), "all three at once"
    for other in (matmul(1024, 1448, 1024, "float16"), kernel(empty(1024, 1448).sum(1)), matmul(256, 1448, 1024)):
        assert not here.is_near(likeness_of(other))
    close, far = likeness_of(matmul(1024, 2048, 1024)), likeness_of(matmul(1024, 8192, 1024))
    assert near_any([close, far], [here]) == {close} and near_any([close], []) == set()


@pytest.mark.parametrize("names", all_examples())
def test_contractions_are_those_of_tile_programs(names: tuple[str, ...]) -> None:
    for name in names:
        known = kernel_of(example_ast(name))
        try:
            read = read_kernel(Region((known,)))
        except (UnsupportedTile, ValueError, NotImplementedError):
            continue
        form = likeness_of(known).form
        assert (read.contraction is not None) <= (CONTRACTION in form), name
        assert bool(read.reductions) <= (form != ELEMENTWISE), name


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format":2,"nodes":[]}', '{"format":1,"nodes":[]}', '{"format":1,"nodes":[1]}',
     '{"format":1,"nodes":[["CONST","weakint",[0],1]]}', '{"format":1,"nodes":[["PARAM","float32",[],null]]}',
     '{"format":1,"nodes":[["REDUCE","float32",[],null]]}', '{"format":1,"nodes":[["RANGE","weakint",[],[0,"W"]]]}',
     "[" * 100_000],
)  # fmt: skip
def test_what_is_no_ast_is_of_no_class(text: str) -> None:
    with pytest.raises(CodecError) as caught:
        likeness_of(Kernel(text))
    assert "\n" not in str(caught.value)


def test_a_foreign_ast_is_read_in_a_time_that_its_nodes_bound() -> None:
    product: list[object] = [["CONST", "weakint", [], 3], ["RANGE", "weakint", [0], [0, "WEAK"]]]
    product += [["MUL", "weakint", [i, i], None] for i in range(1, 2_000)]
    product.append(["REDUCE", "float32", [len(product) - 1, 1], ["ADD", 0]])
    foreign = Kernel(json.dumps({"format": 1, "nodes": product}))
    assert calls_of(lambda: likeness_of(foreign)) < 40 * len(product)
    sizes = [["CONST", "weakint", [], 10**300], *(["MUL", "weakint", [i, i], None] for i in range(9))]
    sizes += [["RANGE", "weakint", [9], [0, "WEAK"]], ["STORE", "void", [10, 10], None]]
    with pytest.raises(CodecError):
        likeness_of(Kernel(json.dumps({"format": 1, "nodes": sizes})))


# -- the split


def many() -> list[Kernel]:
    """Kernels of about a hundred classes, several of most."""
    builds: list[Callable[[int, int], Tensor]] = [
        lambda m, n: empty(m, n).sum(1),
        lambda m, n: empty(m, n).max(1),
        lambda m, n: empty(m, n) + 1,
        lambda m, n: empty(m, n, dtype="float16").exp(),
        lambda m, n: empty(m, 32) @ empty(32, n),
    ]
    sizes = [(m, n) for m in (16, 60, 64, 250, 1024) for n in (16, 62, 256, 2048)]
    return [kernel(build(*size)) for build in builds for size in sizes]


def test_no_class_is_in_two_parts_and_those_of_flux_are_test_whole() -> None:
    kernels = many()
    flux = [kernels[0], kernels[45]]
    workloads = [workload("flux", *flux), workload("family", *kernels)]
    for seed in range(5):
        split = make_splits(by_id(kernels), workloads, seed=seed)["alike"]
        parts = {(likeness_of(k), split.parts[k.id]) for k in kernels}
        assert len(parts) == classes(*kernels) < len(kernels)
        held_out = [k for k in kernels if likeness_of(k) in {likeness_of(one) for one in flux}]
        assert len(held_out) > len(flux) and {split.parts[k.id] for k in held_out} == {TEST}
        assert {part for _, part in parts} == set(PARTS)
        trained = [likeness_of(k) for k in kernels if split.parts[k.id] == TRAIN]
        near = {k.id for k in kernels if split.parts[k.id] != TRAIN and any(map(likeness_of(k).is_near, trained))}
        assert split.near_in_training == near and near


def test_what_joins_moves_only_what_is_alike_a_kernel_of_flux() -> None:
    kernels = many()
    before = make_splits(by_id(kernels[:60]), [workload("family", *kernels[:60])])["alike"]
    joined = make_splits(by_id(random.Random(0).sample(kernels, len(kernels))), [workload("family", *kernels)])["alike"]
    assert before.parts.items() <= joined.parts.items()
    one = next(k for k in kernels if joined.parts[k.id] == TRAIN)
    after = make_splits(by_id(kernels), [workload("flux", one)])["alike"]
    moved = {k.id for k in kernels if after.parts[k.id] != joined.parts[k.id]}
    assert moved == {k.id for k in kernels if likeness_of(k) == likeness_of(one)}


def test_a_region_of_several_kernels_is_in_training_only_with_all_of_them() -> None:
    def of(*kernels: tuple[str, bool]) -> tuple[str | None, bool | None]:
        values = {f"k{i}": {"split_alike": part, NEAR: near} for i, (part, near) in enumerate(kernels)}
        found = values_of_regions(values, {"region": [*values]})["region"]
        return found.parts[-1], found.near

    learned, new, near, tuned = (TRAIN, False), (TEST, False), (TEST, True), (VALIDATION, False)
    assert of(learned, learned) == (TRAIN, False)
    assert of(learned, new) == (TEST, False) and of(learned, tuned) == (VALIDATION, False)
    assert of(learned, near) == (TEST, True) and of(near, near) == (TEST, True) and of(near, new) == (TEST, False)
    assert of(tuned, near) == (TEST, False)


def test_two_thousand_kernels_take_few_calls() -> None:
    kernels = by_id(many())
    nodes = sum(len(json.loads(k.ast_json)["nodes"]) for k in kernels.values())
    fresh = by_id(Kernel(k.ast_json + " ") for k in kernels.values())  # so none is remembered
    assert calls_of(lambda: [likeness_of(k) for k in fresh.values()]) < 30 * nodes


# -- exports


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An export with a region of two kernels, one of them of Flux, and a kernel that is near that one."""
    one, two, other = kernel(empty(64, 256).sum(1)), kernel(empty(64) + 1), kernel(empty(128, 256).max(1))
    pair = Region((one, two), ((0, 1), (2, 0)), (2,))
    with Journal.open(tmp_path / "a.sqlite") as journal:
        journal.add_target(TARGET)
        journal.add_toolchain(TOOLCHAIN)
        journal.add_run(Run("r1", "2025-01-01T00:00:00+00:00", "kcg", {}))
        journal.add_workload(workload("flux", one))
        journal.add_workload(Workload("family", "p", (WorkloadCall(pair, 1), WorkloadCall(Region((other,)), 1))))
        for n, region in enumerate((one.id, other.id, pair.id)):
            journal.record(measurement(n, region_id=region, schedule=measurement().schedule))
        export(journal, tmp_path / "out")
    return tmp_path / "out"


def as_before(folder: Path) -> None:
    """Takes away what an export of before has not."""
    from pyarrow import parquet

    sums = json.loads((folder / CHECKSUMS).read_text())
    for name in ("kernels.parquet", "measurements.parquet"):
        table = parquet.read_table(folder / name)
        parquet.write_table(table.drop_columns([c for c in ADDED if c in table.column_names]), folder / name)
        sums[name] = sha256_of(folder / name)
    (folder / CHECKSUMS).write_text(json.dumps(sums))


def test_rows_of_regions_have_their_part_and_an_export_of_before_has_the_same(folder: Path) -> None:
    def read() -> tuple[list[dict[str, object]], list[dict[str, object]]]:
        data = read_export(folder)
        rows = data.table(1, ["region_id", "split_alike", NEAR, "split_kernel"]).to_pylist()
        return sorted(rows, key=str), data.kernels_table(SPLIT_COLUMNS).to_pylist()

    rows, kernels = read()
    by_part = {row["id"]: (row["split_alike"], row[NEAR]) for row in kernels}
    several = [row for row in rows if row["region_id"] not in by_part]
    assert [row["split_alike"] for row in several] == [TEST], "one of its kernels is of Flux"
    assert all((row["split_alike"], row[NEAR]) == by_part[row["region_id"]] for row in rows if row not in several)
    assert len({row["alike"] for row in kernels}) == 3 and all(len(str(row["alike"])) == 16 for row in kernels)
    assert read_export(folder).lacks("kernels.parquet") == set()
    counted = stats(read_export(folder)).splits["alike"]
    assert sum(part.rows for part in counted.values()) == 3 and counted[TEST].rows >= 2
    as_before(folder)
    assert read_export(folder).lacks("kernels.parquet") == set(ADDED)
    assert read() == (rows, kernels)
    assert not [line for line in verify(folder, workers=1).problems if "split" in line or "near" in line]


def test_the_recorded_dataset_is_as_it_was() -> None:
    """It was written before there was such a split."""
    data = read_export(Path(__file__).parents[2] / "datasets" / "h200")
    assert data.lacks("kernels.parquet") == set(ADDED)
    table = data.kernels_table(["split_kernel", "kernel_twin_in_training", "split_alike", NEAR]).to_pylist()
    tested = [row for row in table if row["split_kernel"] == TEST]
    assert (len(tested), sum(row["kernel_twin_in_training"] for row in tested)) == (239, 152)
    held_out = [row for row in table if row["split_alike"] == TEST]
    assert 0 < sum(not row[NEAR] for row in held_out) < len(held_out) < len(table) / 4
