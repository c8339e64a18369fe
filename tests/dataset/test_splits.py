"""No kernel is in two parts of a split, Flux is never learned from, and twins are found however sizes fall together."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import pytest
from tinygrad import Tensor, dtypes

from kcg.dataset.splits import PARTS, SPLITS, TEST, TRAIN, VALIDATION, is_validation_family, make_splits
from kcg.errors import CodecError
from kcg.kernel.analysis import shape_class
from kcg.kernel.codec import ast_of, kernel_of
from kcg.types import Kernel, Region, Workload, WorkloadCall, canonical_json
from tests.calls import calls_of
from tests.commands import python
from tests.kernels import TYPICAL, all_examples, empty, example_ast, kernels_of
from tests.slow import every

ROOT = Path(__file__).parents[2]


def kernel(tensor: Tensor) -> Kernel:
    """The only kernel of a tensor, or its last."""
    return kernel_of(kernels_of(tensor)[-1])


def matmul(m: int, k: int, n: int, dtype: str = "float32") -> Kernel:
    return kernel(empty(m, k, dtype=dtype) @ empty(k, n, dtype=dtype))


def workload(name: str, *kernels: Kernel, preset: str = "p") -> Workload:
    return Workload(name, preset, tuple(WorkloadCall(Region((k,)), 1) for k in kernels))


@cache
def elementwise(n: int) -> tuple[Kernel, ...]:
    """`n` kernels that are no twins of each other: chains of sines and square roots."""
    chain = empty(8, 3)
    for _ in range(10):
        chain = chain.sin()
    ast = json.loads(kernel(chain).ast_json)
    places = [i for i, row in enumerate(ast["nodes"]) if row[0] == "SIN"]
    made = []
    for i in range(n):
        for bit, place in enumerate(places):
            ast["nodes"][place][0] = "SQRT" if i >> bit & 1 else "SIN"
        made.append(Kernel(canonical_json(ast)))
    return tuple(made)


def by_id(kernels: Iterable[Kernel]) -> dict[str, Kernel]:
    return {k.id: k for k in kernels}


def a_family(*, validation: bool) -> str:
    """A name that the hash puts on that side."""
    return next(name for i in range(1000) if is_validation_family(name := f"family{i}") == validation)


# -- twins


def same(*kernels: Kernel) -> bool:
    assert len({k.id for k in kernels}) == len(kernels), "the same kernel, not twins"
    return len({shape_class(k) for k in kernels}) == 1


BUILDS: dict[str, Callable[[int, int, int], Tensor]] = {
    "layer norm": lambda a, b, c: empty(a, b).layernorm(eps=1e-5 * c),
    "mean": lambda a, b, c: empty(a, b, c).mean(2),  # its 1/n is a float constant
    "attention scores": lambda a, b, c: (empty(a, b, c) @ empty(a, c, b)) * c**-0.5,
    "strided": lambda a, b, c: (empty(3 * a, b, c)[::3].permute(2, 0, 1) + 1).contiguous(),
    "cat": lambda a, b, c: empty(a, b).cat(empty(a, c), dim=1),
    "pad": lambda a, b, c: empty(a, b).pad(((1, 2), (0, c)), value=float(c)),
    "embedding": lambda a, b, c: empty(a, b)[empty(c, dtype="int32")],
    "bf16 sum": lambda a, b, c: empty(a, b, c, dtype="bfloat16").sum((0, 2)),
    "conv": lambda a, b, c: empty(2, b, 16 + a, 16 + a).conv2d(empty(c, b, 3, 3), padding=1),
}


@pytest.mark.parametrize("name", every(3, BUILDS))
def test_kernels_that_differ_in_sizes_only_have_one_shape_class(name: str) -> None:
    build = BUILDS[name]
    assert same(*(kernel(build(*sizes)) for sizes in ((6, 10, 14), (12, 22, 18), (7, 15, 31))))


def test_sizes_that_coincide_make_no_other_shape_class() -> None:
    """Equal extents are one constant, and the nodes made of them are one node."""
    assert same(matmul(24, 40, 32), matmul(16, 16, 16), matmul(16, 16, 32), matmul(32, 16, 16), matmul(128, 12, 12))
    added = [
        kernel((empty(a, b).T + empty(c, d)[:b, :a]).contiguous()) for a, b, c, d in ((6, 10, 14, 18), (6, 6, 9, 9))
    ]
    assert same(*added)


def test_what_is_no_size_distinguishes_kernels() -> None:
    different = [
        matmul(24, 40, 32),
        matmul(24, 40, 32, "float16"),
        matmul(24, 40, 32, "bfloat16"),
        kernel(empty(24, 40) @ empty(32, 40).T),
        kernel(empty(40, 24).T @ empty(40, 32)),
        kernel((empty(24, 40) @ empty(40, 32)).relu()),
        kernel(empty(24, 40).dot(empty(40, 32), dtype=dtypes.float64)),
        kernel(empty(24, 40).sum(1)),
        kernel(empty(24, 40).sum(0)),
        kernel(empty(24, 40).max(1)),
        kernel(empty(24, 40).prod(1)),
        kernel(empty(24, 40) + 1),
        kernel(empty(24, 40).T.contiguous()),
        kernel((empty(24, 40) > 1).where(empty(24, 40), 2.0)),
        kernel((empty(24, 40) > 1).where(empty(24, 40), float("inf"))),
        kernel((empty(24, 40) > 1).where(empty(24, 40), float("-inf"))),
    ]
    assert len({shape_class(k) for k in different}) == len(different)


def test_the_same_sums_in_another_order_are_near_duplicates() -> None:
    """tinygrad may sort terms by their constants."""

    def text(first: int, second: int) -> Kernel:
        rows: list[list[object]] = json.loads(matmul(24, 40, 32).ast_json)["nodes"]
        for row in rows:
            if row[0] in ("ADD", "MUL") and row[1] == "weakint":
                sources: list[int] = row[2]  # type: ignore[assignment]
                row[2] = [sources[first], sources[second]]
        return Kernel(json.dumps({"format": 1, "nodes": rows}))

    assert same(text(0, 1), text(1, 0))


@pytest.mark.parametrize("names", all_examples())
def test_every_example_kernel_has_a_shape_class_and_few_share_one(names: tuple[str, ...]) -> None:
    kernels = by_id(kernel_of(example_ast(name)) for name in names)
    assert len({shape_class(k) for k in kernels.values()}) > 0.85 * len(kernels)
    assert all(len(shape_class(k)) == 64 and kernel_of(ast_of(k)) == k for k in kernels.values())


CALLS_A_NODE = 40  # twice as many as a shape class takes: 20 µs a node on an idle core


def test_a_shape_class_is_the_same_in_another_process_and_quick() -> None:
    kernels = [kernel_of(example_ast(name)) for name in TYPICAL]
    code = (
        "import json, sys; from kcg.kernel.analysis import shape_class; from kcg.types import Kernel\n"
        "print(json.dumps([shape_class(Kernel(text)) for text in json.load(sys.stdin)]))"
    )
    other = python("-c", code, stdin=json.dumps([k.ast_json for k in kernels]), PYTHONHASHSEED="7")
    assert json.loads(other.stdout) == [shape_class(k) for k in kernels]
    largest = max(kernels, key=lambda k: len(k.ast_json)).ast_json
    nodes = len(json.loads(largest)["nodes"])
    another = Kernel(largest + " ")  # so none is remembered
    assert calls_of(lambda: shape_class(another)) < CALLS_A_NODE * nodes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        '{"format":2,"nodes":[]}',
        '{"format":1,"nodes":[]}',
        '{"format":1,"nodes":[1]}',
        '{"format":1,"nodes":[["CONST","weakint",[0],1]]}',
        '{"format":1,"nodes":[["ADD",1,[],1]]}',
        '{"format":1,"nodes":[["PARAM","float32",[],null]]}',
        '{"format":1,"nodes":[["CONST","float32",[],"zz"]]}',
        '{"format":1,"nodes":[["RANGE","weakint",[],[1,"WEAK"]],["RANGE","weakint",[],["a","WEAK"]]]}',
        '{"format":1,"nodes":[["REDUCE","float32",[],null]]}',
        "[" * 100_000,
    ],
)
def test_what_is_no_ast_has_no_shape_class(text: str) -> None:
    with pytest.raises(CodecError) as caught:
        shape_class(Kernel(text))
    assert "\n" not in str(caught.value)


def test_a_foreign_ast_that_doubles_at_every_node_takes_no_longer() -> None:
    rows = [["CONST", "weakint", [], 1], *(["ADD", "weakint", [i, i], None] for i in range(2_000))]
    foreign = Kernel(json.dumps({"format": 1, "nodes": rows}))
    assert calls_of(lambda: shape_class(foreign)) < CALLS_A_NODE * len(rows)


# -- splits


def test_the_workload_split_holds_flux_out_and_marks_its_shape_classes() -> None:
    train, validation = a_family(validation=False), a_family(validation=True)
    common, of_validation, of_train, of_flux, alone, everywhere = elementwise(6)
    small, large = matmul(24, 40, 32), matmul(48, 80, 64)
    workloads = [
        workload("flux", common, of_flux, large, everywhere, preset="mini"),
        workload("flux", kernel(empty(99, 7).sin()), preset="1024"),
        workload(train, common, of_train, small, everywhere),
        workload(validation, of_validation, of_train, everywhere),
        workload("synthetic_matmul", matmul(10, 20, 30)),
    ]
    kernels = by_id(c.region.kernel for w in workloads for c in w.calls) | {alone.id: alone}
    split = make_splits(kernels, workloads)["workload"]
    in_flux = {c.region.kernel.id for w in workloads[:2] for c in w.calls}
    assert set(split.kernels_of(TEST)) == in_flux, "all of Flux, and nothing else"
    assert split.kernels_of(VALIDATION) == [of_validation.id], "what a training family has as well is training"
    assert set(split.kernels_of(TRAIN)) == set(kernels) - in_flux - {of_validation.id}
    assert alone.id in split.kernels_of(TRAIN), "a kernel of no workload"
    assert large.id in split.shape_class_in_training, "a plain matmul of another size"
    assert not {of_flux.id, common.id} & split.shape_class_in_training
    assert not split.shape_class_in_training & set(split.kernels_of(TRAIN))


def test_families_of_validation_are_few_and_never_flux_or_synthetic() -> None:
    names = [f"family{i}" for i in range(2_000)]
    assert 0.07 < sum(map(is_validation_family, names)) / len(names) < 0.13
    for seed in range(300):
        assert not is_validation_family("flux", seed=seed)
        assert not is_validation_family("synthetic_matmul", seed=seed)
    assert any(is_validation_family(f"script:{name}.py") for name in names), "a script is a family like any other"
    assert {n for n in names if is_validation_family(n)} != {n for n in names if is_validation_family(n, seed=1)}


def test_presets_of_a_family_stay_together() -> None:
    name, kernels = a_family(validation=True), elementwise(2)
    workloads = [workload(name, k, preset=str(i)) for i, k in enumerate(kernels)]
    assert len(make_splits(by_id(kernels), workloads)["workload"].kernels_of(VALIDATION)) == 2


@pytest.mark.parametrize("split", ["kernel", "twin"])
def test_the_hashed_splits_are_80_10_10(split: str) -> None:
    kernels = by_id(elementwise(400))
    assert len(ast_of(elementwise(400)[-1]).toposort()) > 10, "real ones"
    found = make_splits(kernels, [])[split]
    assert set(found.parts) == set(kernels)
    shares = {part: len(found.kernels_of(part)) / len(kernels) for part in PARTS}
    assert sum(shares.values()) == 1
    assert 0.74 < shares[TRAIN] < 0.86
    assert 0.06 < shares[VALIDATION] < 0.14
    assert 0.06 < shares[TEST] < 0.14
    assert found.parts != make_splits(kernels, [], seed=1)[split].parts


def families_of_shape_classes() -> list[Kernel]:
    sizes = (9, 14, 20, 33, 51)
    builds: list[Callable[[int], Tensor]] = [
        lambda n: empty(n, 6).sum(1),
        lambda n: empty(n, 6).max(1),
        lambda n: empty(n, 6, dtype="float16") + 1,
        lambda n: empty(n, 6).T.contiguous(),
        lambda n: empty(n, 6).exp(),
        lambda n: empty(n, 6).log(),
        lambda n: empty(n, 6, dtype="int32") * empty(n, 6, dtype="int32"),
        lambda n: empty(n, 6) @ empty(6, 8),
    ]
    return [*(kernel(build(n)) for build in builds for n in sizes), *elementwise(40)]


def test_the_split_by_shape_class_parts_none() -> None:
    kernels = by_id(families_of_shape_classes())
    classes = {shape_class(k) for k in kernels.values()}
    assert len(classes) <= len(kernels) - 30
    for seed in range(5):
        split = make_splits(kernels, [], seed=seed)["twin"]
        assert split.shape_class_in_training == frozenset()
        assert len({(shape_class(kernels[k]), part) for k, part in split.parts.items()}) == len(classes)


def test_the_kernel_split_goes_by_the_kernel_alone_and_marks_shape_classes() -> None:
    kernels = by_id(families_of_shape_classes())
    split = make_splits(kernels, [])["kernel"]
    trained = {shape_class(kernels[k]) for k in split.kernels_of(TRAIN)}
    held_out = {*split.kernels_of(VALIDATION), *split.kernels_of(TEST)}
    assert split.shape_class_in_training == {k for k in held_out if shape_class(kernels[k]) in trained} != set()


def test_splits_do_not_depend_on_order_and_what_joins_moves_nothing() -> None:
    kernels = families_of_shape_classes()
    names = [f"family{i}" for i in range(20)] + ["flux", "synthetic_sum", "script:a.py"]
    rng = random.Random(0)
    workloads = [workload(name, *rng.sample(kernels[:40], 6)) for name in names]
    before = make_splits(by_id(kernels[:50]), workloads)
    shuffled = rng.sample(kernels[:50], 50), rng.sample(workloads, len(workloads))
    assert make_splits(by_id(shuffled[0]), iter(shuffled[1])) == before
    assert set(before) == set(SPLITS)
    joined = [*workloads, workload("family100", *kernels[50:])]
    after = make_splits(by_id(kernels), joined)
    for name, split in before.items():
        assert split.parts.items() <= after[name].parts.items()
    claimed = before["workload"].kernels_of(TRAIN)[0]
    joined.append(workload("flux", by_id(kernels)[claimed], preset="another"))
    assert make_splits(by_id(kernels), joined)["workload"].parts[claimed] == TEST, "except where a workload claims it"
