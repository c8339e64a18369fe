"""Which calls are proposed to run as one program, and what that spares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from tinygrad import Tensor, UOp, Variable, dtypes

from kcg.kernel.reading.fuse import read_region
from kcg.kernel.regions import Candidate, Form, Limits, candidates_of
from kcg.kernel.sequences import partition_of
from kcg.types import Sequence as Calls
from tests.captured import captured
from tests.chains import sequence_of
from tests.kernels import empty

ROWS, WIDTH = 64, 96
MATRIX = 4 * ROWS * WIDTH


def proposed(*outputs: Tensor, limits: Limits | None = None) -> dict[tuple[int, ...], Candidate]:
    """Calls of the first occurrence -> candidate, of those that compute nothing again."""
    return {tuple(sorted(c.places[0])): c for c in candidates_of(sequence_of(*outputs), limits) if not c.again}


def at(candidates: Sequence[Candidate], *places: int) -> Candidate:
    (found,) = [c for c in candidates if places in [tuple(sorted(p)) for p in c.places] and not c.again]
    return found


# ---- row groups


@pytest.mark.parametrize("made", [lambda x: x.layernorm(), lambda x: x.softmax()], ids=["LayerNorm", "softmax"])
def test_three_kernels_of_a_norm_are_one_read_and_one_write(made: object) -> None:
    found = proposed(made(empty(ROWS, WIDTH)).contiguous())  # type: ignore[operator]
    assert set(found) == {(0, 1, 2), (0, 1), (1, 2)} and {c.form for c in found.values()} == {Form.ROWS}
    spared = 2 * MATRIX + 2 * 4 * ROWS + 3 * 4 * ROWS  # two reads of the rows, two values of each and their three reads
    assert found[0, 1, 2].saved_bytes == spared and len(found[0, 1, 2].region.outputs) == 1


def test_rms_norm_of_a_scale_and_a_residual() -> None:
    x, scale = empty(ROWS, WIDTH, dtype="bfloat16"), empty(WIDTH, dtype="bfloat16")
    wide = x.cast(dtypes.float32)
    normed = wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    assert set(proposed((normed.cast(x.dtype) * scale + empty(ROWS, WIDTH)).contiguous())) == {(0, 1)}


def test_a_loss_takes_its_gather_along() -> None:
    sequence = sequence_of(
        empty(ROWS, WIDTH).sparse_categorical_crossentropy(empty(ROWS, dtype="int32"), reduction="none")
    )
    (whole,) = [c for c in candidates_of(sequence) if len(c.places[0]) == len(sequence.calls)]
    assert whole.form is Form.ROWS and whole.saved_bytes >= MATRIX


def test_an_elementwise_neighbour_joins_and_its_value_is_stored_for_others() -> None:
    x = (empty(ROWS, WIDTH) * 2).contiguous()
    found = proposed(x.layernorm().contiguous(), (x + 1).flip(0).contiguous())
    whole = found[max(found, key=len)]
    assert len(whole.places[0]) == 4 and len(whole.region.outputs) == 2


def test_sums_over_rows_and_over_columns_are_no_row_group() -> None:
    x = empty(ROWS, WIDTH)
    assert proposed((x - x.mean(1, keepdim=True).contiguous()).mean(0).contiguous()) == {}


def test_a_vector_that_all_rows_need_is_none_of_their_values() -> None:
    """What a modulation makes comes out of a reduction too, one for all rows."""
    x, scale = empty(ROWS, WIDTH), (empty(1, WIDTH) @ empty(WIDTH, WIDTH)).contiguous()
    assert proposed((x * scale).contiguous()) == {}


def test_a_row_that_no_multiprocessor_holds_is_not_kept() -> None:
    def made() -> Tensor:
        x = empty(4, WIDTH)
        stored = (x - x.max(1, keepdim=True).contiguous()).exp().contiguous()
        return (stored / stored.sum(1, keepdim=True).contiguous()).contiguous()

    whole = (0, 1, 2, 3)
    assert whole in proposed(made())
    assert whole not in proposed(made(), limits=Limits(row_bytes=2 * WIDTH))


# ---- contractions


def heads(x: Tensor, weight: Tensor, count: int) -> Tensor:
    """A projection with a norm of each head."""
    projected = (x @ weight).contiguous().reshape(x.shape[0], count, -1)
    return (projected * (projected.square().mean(-1, keepdim=True) + 1e-6).rsqrt().contiguous()).contiguous()


def test_a_norm_of_each_head_fits_into_the_epilogue_of_its_projection() -> None:
    found = proposed(heads(empty(ROWS, WIDTH), empty(WIDTH, 4 * 128), 4))
    assert found[0, 1, 2].form is Form.EPILOGUE and len(found[0, 1, 2].region.outputs) == 1
    wide = proposed(heads(empty(ROWS, WIDTH), empty(WIDTH, 4 * 512), 4))
    assert (0, 1, 2) not in wide and wide[1, 2].form is Form.ROWS, "a head of 512 columns is more than one tile"


def test_a_rotation_by_halves_fits_into_the_epilogue_too() -> None:
    def made() -> Tensor:
        pairs = (empty(ROWS, WIDTH) @ empty(WIDTH, 4 * 64)).contiguous().reshape(ROWS, 4, 2, 32)
        cos, sin = empty(ROWS, 1, 32), empty(ROWS, 1, 32)
        x, y = pairs[:, :, 0], pairs[:, :, 1]
        return (x * cos - y * sin).stack(x * sin + y * cos, dim=2).contiguous()

    assert proposed(made())[0, 1].form is Form.EPILOGUE


def test_a_sum_that_a_concatenation_split_is_one_program() -> None:
    def product() -> Tensor:
        return empty(ROWS, WIDTH) @ empty(WIDTH, 128)

    found = proposed((product() + product().contiguous()).contiguous())
    assert found[0, 1].form is Form.JOINED and found[0, 1].saved_bytes == 2 * 4 * ROWS * 128


def test_contractions_of_one_operand_read_it_once() -> None:
    x = empty(ROWS, WIDTH)
    found = proposed(*((x @ empty(WIDTH, 128)).contiguous() for _ in range(3)))
    assert set(found) == {(0, 1, 2), (0, 1)} and {c.form for c in found.values()} == {Form.SHARED}
    assert len(found[0, 1].places) == 3, "any two of them are the same region"
    assert found[0, 1, 2].saved_bytes == 2 * MATRIX
    apart = proposed((x @ empty(WIDTH, 128)).contiguous(), (empty(ROWS, WIDTH) @ empty(WIDTH, 128)).contiguous())
    assert {c.form for c in apart.values()} == {Form.BESIDE}


def test_slices_of_a_weight_are_not_one_operand() -> None:
    weight = empty(256, WIDTH)
    found = proposed(*((empty(ROWS, WIDTH) @ weight[part].T).contiguous() for part in (slice(0, 128), slice(128, 256))))
    assert {c.form for c in found.values()} == {Form.BESIDE}


def linear(rows: int, columns: int = 128, terms: int = WIDTH, dtype: str = "float32") -> Tensor:
    return (empty(rows, terms, dtype=dtype) @ empty(terms, columns, dtype=dtype)).contiguous()


def test_contractions_beside_each_other_save_no_byte() -> None:
    found = proposed(linear(ROWS), linear(4 * ROWS))
    assert set(found) == {(0, 1)} and found[0, 1].form is Form.BESIDE
    assert found[0, 1].saved_bytes == 0 and len(found[0, 1].region.outputs) == 2


@pytest.mark.parametrize(
    "other",
    [
        lambda: linear(ROWS, columns=64),
        lambda: linear(ROWS, terms=64),
        lambda: linear(ROWS, dtype="float16"),
        lambda: (empty(4, ROWS, WIDTH) @ empty(4, WIDTH, 128)).contiguous(),
    ],
    ids=["columns", "terms", "format", "batch"],
)
def test_contractions_of_other_tiles_are_not_beside_each_other(other: Callable[[], Tensor]) -> None:
    assert proposed(linear(4 * ROWS), other()) == {}


def test_contractions_that_need_each_other_are_not_beside_each_other() -> None:
    """Directly, or by way of another call."""
    weights = [empty(128, 128) for _ in range(2)]
    first = (empty(ROWS, 128) @ weights[0]).contiguous()
    for made in (first, first.flip(0).contiguous()):
        found = proposed((made @ weights[1]).contiguous())
        assert not any(c.form is Form.BESIDE for c in found.values())


def test_contractions_beside_each_other_are_near_and_one_is_small() -> None:

    def far() -> list[Tensor]:
        return [linear(ROWS), *(empty(ROWS, 7 + n).sum(1).contiguous() for n in range(8)), linear(4 * ROWS)]

    def large() -> tuple[Tensor, ...]:
        return linear(4096, 4096), linear(2048, 4096)

    assert not proposed(*far()) and proposed(*far(), limits=Limits(near=9))
    assert proposed(*large()) and not proposed(*large(), limits=Limits(few=1 << 22))


def test_each_contraction_has_one_beside_it() -> None:
    """The next one, so that there are not more than contractions."""
    found = candidates_of(sequence_of(*(linear(ROWS * (1 + n)) for n in range(5))))
    assert [places for c in found for places in map(sorted, c.places)] == [[n, n + 1] for n in range(4)]


def test_an_operand_is_made_on_the_way_and_made_again_for_others() -> None:
    def both() -> tuple[Tensor, Tensor]:
        x = (empty(ROWS, WIDTH) * 2 + 1).contiguous()
        return (x @ empty(WIDTH, 512)).contiguous(), (x @ empty(WIDTH, 1024)).contiguous()

    found = candidates_of(sequence_of(*both()))
    assert at(found, 0, 1, 2).form is Form.PROLOGUE and at(found, 0, 1, 2).saved_bytes == 3 * MATRIX
    assert at(found, 0, 1, 2).again_operations == (1 + 3) * 2 * ROWS * WIDTH, "once more in each tile of 256 columns"
    again = {tuple(sorted(c.places[0])): c for c in found if c.again}
    assert set(again) == {(0, 1), (0, 2)} and again[0, 1].own(again[0, 1].places[0]) == (1,)
    assert len(again[0, 1].region.outputs) == 1, "its value is stored elsewhere, or nowhere"
    assert not any(c.form is Form.PROLOGUE for c in candidates_of(sequence_of(*both()), Limits(again=1)))


# ---- in all


def test_symbolic_sizes_are_read_at_their_largest_and_count_as_they_ran() -> None:
    def softmax(rows: int | UOp) -> Tensor:
        return empty(ROWS, WIDTH)[:rows].softmax().contiguous()

    def of(sequence: Calls) -> dict[tuple[int, ...], tuple[int, int, float]]:
        return {c.places[0]: (c.bytes, c.saved_bytes, c.again_operations) for c in candidates_of(sequence)}

    symbolic = sequence_of(softmax(Variable("length", 1, ROWS).bind(20)))
    ran = replace(symbolic, seen=(((("length", 16),), 3), ((("length", 32),), 1)))
    assert len(of(ran)) == 3 and of(ran) == of(sequence_of(softmax(20))), "the mean"
    assert of(symbolic) == of(sequence_of(softmax(ROWS)))


def test_attention_of_a_decode_step_is_one_without_its_update_of_the_cache() -> None:
    (sequence,) = captured("llama", "mini-decode").sequences
    found = [c for c in candidates_of(sequence) if c.form is Form.CHAINED]
    assert [c.places for c in found] == [((10, 11, 12, 13, 14), (30, 31, 32, 33, 34))]
    updates = {6, 9, 26, 29}
    assert not any(updates & set(places) for c in candidates_of(sequence) for places in c.places)


@pytest.mark.slow
def test_attention_of_heads_with_keys_of_their_own_is_a_row_group() -> None:
    """Each product has one row: none of them is a contraction."""
    (sequence,) = captured("llama", "2-7b-decode").sequences
    assert [c.form for c in candidates_of(sequence) if c.places[0] == (10, 11, 12, 13, 14)] == [Form.ROWS]


def test_what_is_updated_is_left_alone() -> None:
    state = empty(ROWS, WIDTH)
    before = (state @ empty(WIDTH, 128)).contiguous()
    update = state.assign(state + 1)
    assert all(len(places) < 3 for places in proposed(before, update))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "preset"), [("flux", "mini"), ("llama", "mini"), ("cross_entropy", "mini")])
def test_every_candidate_can_take_the_place_of_its_calls(name: str, preset: str) -> None:
    """By the rules by which calls of a running program are replaced."""
    (sequence,) = captured(name, preset).sequences
    found = candidates_of(sequence)
    assert len(found) > 5 and len({(c.region.id, c.again) for c in found}) == len(found)
    for candidate in found:
        for places in candidate.places:
            again = [places[number] for number in candidate.again]
            assert sequence.region(*places, again=again, ordered=True) == candidate.region
        if not candidate.again:
            assert candidate.saved_bytes > 0 or candidate.form is Form.BESIDE
            assert partition_of(sequence).claim(candidate.region), candidate.form


@pytest.mark.slow
def test_blocks_that_run_what_is_independent_in_other_orders_have_the_same_regions() -> None:
    (sequence,) = captured("llama", "mini").sequences
    places = sorted(place for c in candidates_of(sequence) if c.form is Form.SHARED for place in c.places)
    by_block = [
        {tuple(sorted(p - shift for p in one)) for one in places if 3 + shift <= min(one) < 21 + shift}
        for shift in (0, 18)
    ]
    first, second = ([call.kernel for call in sequence.calls[start : start + 18]] for start in (3, 21))
    assert first != second and sorted(k.id for k in first if k) == sorted(k.id for k in second if k)
    assert len(by_block[0]) == len(by_block[1]) > 0


@pytest.fixture(scope="module")
def flux() -> Calls:
    (sequence,) = captured("flux", "1024").sequences
    return sequence


@pytest.mark.slow  # each form is shown above, and flux's plans by tests of plans
def test_what_is_proposed_for_a_block_of_flux(flux: Calls) -> None:
    """Places are those of the second double block, from its modulated norms on, and of the second single block."""
    found = candidates_of(flux)
    assert len(found) < 100
    norm, heads, text_too = at(found, 72, 74, 76), at(found, 62, 63, 64), at(found, 59, 60, 61, 62, 63, 64)
    assert [c.form for c in (norm, heads, text_too)] == [Form.ROWS, Form.ROWS, Form.EPILOGUE]
    assert [len(c.places) for c in (norm, heads, text_too)] == [3, 3, 3]
    assert len(read_region(text_too.region).grouped) == 1, "one program of both streams"
    assert norm.saved_bytes == pytest.approx(2 * 4096 * 3072 * 2, rel=0.01), "two of three reads"
    beside = [at(found, 70, 71), at(found, 78, 79), at(found, 80, 81)]  # attention's output, the MLP's two matmuls
    assert all(c.form is Form.BESIDE and len(c.places) == 3 for c in beside)
    single = {
        (127, 128, 129): Form.ROWS,  # modulated norm
        (130, 132, 133, 134): Form.EPILOGUE,  # query, key and value; norm and rotation of query and key
        (130, 131): Form.SHARED,  # with the MLP's first matmul
        (140, 141): Form.JOINED,  # the second: attention's part and the MLP's
        (136, 137, 138): Form.ROWS,  # softmax
    }
    for places, form in single.items():
        assert at(found, *places).form is form and len(at(found, *places).places) in (3, 6)
    query_and_key = 4608 * 6144 * 2  # bytes, each read three times: by the norm, and by the two rotations half
    assert at(found, 130, 132, 133, 134).saved_bytes == pytest.approx(2 * query_and_key, rel=0.05)
