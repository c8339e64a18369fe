"""Attention by specialised warps, run on the CPU with barriers as the hardware has them: right, and nobody waits for
ever or reads what is overwritten."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest

from kcg.kernel.reading.fuse import read_region
from kcg.kernel.reading.unsupported import UnsupportedTile
from kcg.kernel.tile.cost import predicted_seconds
from kcg.kernel.tile.generate import generate_kernel
from kcg.kernel.tile.legal import is_legal, legal_values
from kcg.kernel.tile.parameters import SPECIALIZED, TileParameters
from kcg.kernel.tile.prior import parameters_of
from kcg.kernel.tile.specialized import PROGRAM_ROWS
from kcg.kernel.tile.views import AttentionView
from kcg.types import Region
from tests.chains import region_of
from tests.kernel.tile.gluon_on_cpu import ProtocolError, wrong_in_gluon
from tests.kernel.tile.running import Case
from tests.kernel.tile.test_tile_on_gpu import ATTENTIONS, attention_of, heads
from tests.kernels import empty
from tests.known_targets import KNOWN_TARGETS
from tests.slow import first, some

TARGET = replace(KNOWN_TARGETS["sm_90"], cores=2)
"""Of a handful of tiles each multiprocessor has several."""


def begun(region: Region) -> TileParameters:
    kernel = read_region(region)
    return parameters_of(kernel, TARGET, SPECIALIZED, AttentionView.of(kernel).axes)


def case_of(region: Region, parameters: TileParameters) -> Case:
    return Case(region, generate_kernel(read_region(region), TARGET, parameters))


@pytest.mark.parametrize("persistent", first(2, [0, 1]))
@pytest.mark.parametrize("name", some(ATTENTIONS, {"a bias"}))
def test_groups_of_warps_keep_to_their_protocol(name: str, persistent: int) -> None:
    """Of two groups that compute and of three, where there are registers for them; of two slots and of three."""
    region = attention_of(name)
    found = [replace(begun(region), tile=(rows,), persistent=persistent) for rows in PROGRAM_ROWS]
    found.append(replace(found[0], reduce_tile=64, num_stages=5 - found[0].num_stages))
    legal = [p for p in found if is_legal(read_region(region), TARGET, p)]
    assert len(legal) >= 2
    for p in legal:
        case = case_of(region, p)
        assert case.program.launches[0].grid > 2 or persistent
        assert not wrong_in_gluon(case), p


@pytest.mark.slow
@pytest.mark.parametrize("name", ["heads that share keys", "causal, odd rows"])
@pytest.mark.parametrize("persistent", [0, 1])
def test_they_do_whoever_is_late(name: str, persistent: int) -> None:
    region = attention_of(name)
    case = case_of(region, replace(begun(region), reduce_tile=128, num_stages=2, persistent=persistent))
    for seed in range(1, 4):  # inputs too
        assert not wrong_in_gluon(replace(case, seed=seed))


BROKEN = {
    "values of a tile's last block are not given back": (
        r"mbarrier\.arrive\(values_empty\.index\(\(done \+ last\).*",
        3,
    ),
    "queries are not given back": (r"mbarrier\.arrive\(queries_empty.*", 3),
    "the loads do not wait for a slot of queries": (r"mbarrier\.wait\(queries_empty.*", 3),
    "the loads do not wait for a slot of values": (r"mbarrier\.wait\(values_empty.*", 2),
    "groups count no tiles": (r"taken \+= 1", 3),
    "groups count no blocks": (r"done \+= .*", 3),
}
"""What is left out -> where, in the first function that has it, and of how many slots of keys."""


@cache
def whole(stages: int) -> Case:
    """A program with which nothing is wrong, of one block of keys a tile: loads are two tiles ahead where nothing holds
    them."""
    region = region_of(heads(4, 512, 128).scaled_dot_product_attention(heads(4, 100, 128), heads(4, 100, 128)))
    case = case_of(region, replace(begun(region), tile=(128,), reduce_tile=128, num_stages=stages, persistent=1))
    assert not wrong_in_gluon(case)
    return case


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_protocol_is_seen(what: str) -> None:
    text, stages = BROKEN[what]
    case = whole(stages)
    source, count = re.subn(text, "pass", case.program.source, count=1)
    assert count
    with pytest.raises(ProtocolError):
        wrong = wrong_in_gluon(replace(case, program=replace(case.program, source=source)))
        raise ProtocolError(wrong) if wrong else AssertionError("nobody saw it")


def test_tiles_in_turn_are_a_candidate_where_there_are_more_than_multiprocessors() -> None:
    region = attention_of("whole blocks")  # 12 tiles
    kernel, p = read_region(region), replace(begun(region), persistent=0)
    assert predicted_seconds(kernel, TARGET, replace(p, persistent=1)) < predicted_seconds(kernel, TARGET, p)
    for cores, values in ((2, (0, 1)), (11, (0, 1)), (12, (0,))):
        assert legal_values(kernel, replace(TARGET, cores=cores), p, "persistent") == values
    # queries of two tiles and three slots of keys and values take more shared memory than there is
    assert legal_values(kernel, TARGET, replace(p, persistent=1), "num_stages") == (2,)
    assert legal_values(kernel, TARGET, p, "num_stages") == (2, 3)


@pytest.mark.parametrize(("name", "cores", "persistent"), [
    ("whole blocks", 2, 1), ("whole blocks", 12, 0), ("whole blocks", 0, 0), ("heads of 64", 2, 1),
    ("causal heads of 64", 2, 0), ("a window", 2, 0),
])  # fmt: skip
def test_a_search_begins_with_tiles_in_turn_where_no_mask_bounds_keys(name: str, cores: int, persistent: int) -> None:
    """And where multiprocessors have several of them."""
    target, kernel = replace(TARGET, cores=cores), read_region(attention_of(name))
    p = parameters_of(kernel, target, SPECIALIZED, AttentionView.of(kernel).axes)
    assert p.persistent == persistent and is_legal(kernel, target, p)


@pytest.mark.parametrize(("tokens", "size", "key_heads", "causal", "faster"), [
    (4608, 128, 24, False, True), (2560, 128, 24, False, True), (4096, 128, 16, True, False),
    (4096, 64, 32, True, False), (4096, 128, 8, True, True),
])  # fmt: skip
def test_the_cost_knows_where_tiles_in_turn_are_faster(
    tokens: int, size: int, key_heads: int, causal: bool, faster: bool
) -> None:
    """As measured on an H100. Of equal tiles always; of unequal ones where a multiprocessor has many."""
    heads = 32 if key_heads == 8 else key_heads
    query, key, value = (empty(1, n, tokens, size, dtype="bfloat16") for n in (heads, key_heads, key_heads))
    made = query.scaled_dot_product_attention(key, value, is_causal=causal, enable_gqa=heads != key_heads)
    kernel, target = read_region(region_of(made)), replace(TARGET, cores=132)
    p = parameters_of(kernel, target, SPECIALIZED, AttentionView.of(kernel).axes)
    assert {0, 1} == set(legal_values(kernel, target, p, "persistent")) and p.persistent == (not causal)
    one_each, in_turn = (predicted_seconds(kernel, target, replace(p, persistent=n)) for n in (0, 1))
    assert (in_turn < one_each) == faster


@pytest.mark.parametrize(("field", "value"), [("persistent", 2), ("tail", 2), ("split", 2)])
def test_what_specialised_warps_do_not_have_is_refused_by_name(field: str, value: int) -> None:
    region = attention_of("whole blocks")
    kernel, target, p = read_region(region), replace(TARGET, cores=5), begun(region)
    with pytest.raises(UnsupportedTile, match=field):
        generate_kernel(kernel, target, replace(p, **{field: value}))
    assert value not in legal_values(kernel, target, p, field)
