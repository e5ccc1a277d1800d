import pytest
from hypothesis import given
from hypothesis import strategies as st

from slob_opt.cost.batch import BatchShape, round_half_up
from slob_opt.errors import InputError

contexts = st.lists(st.integers(1, 5000), max_size=12)
chunks = st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 600)), max_size=6)
batches = st.tuples(contexts, chunks).filter(lambda batch: bool(batch[0] or batch[1]))
windows = st.none() | st.integers(1, 4000)


@given(batches, windows)
def test_attention_work_is_the_sum_over_tokens(batch, window):
    """Token at position p (from 0) attends to itself and what came before: min(p + 1, window) tokens."""
    decodes, prefills = batch
    shape = BatchShape.ragged(decodes, prefills)
    cap = window if window is not None else 10**9
    assert shape.kv_tokens_read(window) == sum(min(c, cap) for c in decodes)
    assert shape.prefill_pairs(window) == sum(min(p + 1, cap) for c, n in prefills for p in range(c, c + n))
    assert shape.computed_tokens == len(decodes) + sum(n for _, n in prefills)
    assert shape.padding_tokens == 0


@given(batches, windows)
def test_padded_is_a_rectangle_and_never_less_work(batch, window):
    decodes, prefills = batch
    ragged, padded = BatchShape.of(decodes, prefills), BatchShape.of(decodes, prefills, is_padded=True)
    longest_chunk = max((n for _, n in prefills), default=0)
    assert padded.computed_tokens == len(decodes) + len(prefills) * longest_chunk
    assert padded.kv_tokens_read() == len(decodes) * max(decodes, default=0)
    assert padded.padding_tokens == padded.computed_tokens - ragged.computed_tokens
    assert padded.num_sequences == ragged.num_sequences
    assert padded.kv_tokens_read(window) >= ragged.kv_tokens_read(window)
    assert padded.prefill_pairs(window) >= ragged.prefill_pairs(window)


@given(st.integers(1, 3000), st.integers(1, 64))
def test_equal_members_need_no_pads(context, members):
    ragged = BatchShape.of([context] * members, [(0, context)] * members)
    assert BatchShape.of([context] * members, [(0, context)] * members, is_padded=True) == ragged
    assert ragged.padding_share == 0


@given(st.integers(1, 64), st.integers(1, 4000), st.integers(0, 20000), st.integers(1, 4000))
def test_average_shape_has_the_mean_attention_of_a_prompt(decodes, context, prefill, prompt):
    """A prompt of P tokens attends to P (P + 1) / 2 pairs, so a token to (P + 1) / 2 on average."""
    shape = BatchShape.average(decodes, context, prefill, prompt)
    assert shape.computed_tokens == decodes + prefill
    assert shape.prefill_tokens == prefill
    assert abs(shape.prefill_pairs() - prefill * (prompt + 1) / 2) <= prompt / 2  # the middle is rounded to a token


def test_bucket_rounds_tokens_up_and_counts_them_as_pads():
    shape = BatchShape.ragged([10, 20, 30])
    assert shape.rounded_up([1, 2, 4, 8]).computed_tokens == 4
    assert shape.rounded_up([1, 2, 4, 8]).padding_tokens == 1
    assert shape.rounded_up([1, 2]) == shape
    assert shape.rounded_up([3]) == shape
    assert shape.rounded_up([4]).kv_tokens_read() == 60


@pytest.mark.parametrize(
    ("decodes", "prefills", "word"),
    [([], [], "computed"), ([0], [], "itself"), ([], [(0, 0)], "chunk"), ([], [(-1, 4)], "chunk")],
)
def test_empty_and_negative_batches_are_refused(decodes, prefills, word):
    with pytest.raises(InputError, match=word):
        BatchShape.ragged(decodes, prefills)


def test_prefill_without_prompt_is_refused():
    with pytest.raises(InputError, match="prefill"):
        BatchShape.average(1, 10, 5, 0)


def test_halves_round_up():
    assert [round_half_up(x) for x in (0.49, 0.5, 1.5, 2.5, 2.51)] == [0, 1, 2, 3, 3]
