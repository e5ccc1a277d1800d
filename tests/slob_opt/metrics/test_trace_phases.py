from __future__ import annotations

from slob_opt.metrics.iterations import Iteration
from slob_opt.metrics.trace_phases import Phase, iteration_phases
from slob_opt.problem.workload import Workload


def batch(tokens: dict[int, int], preempted: tuple[int, ...] = ()) -> Iteration:
    return Iteration(0, 0, tuple(tokens), tuple(tokens.values()), preempted, (0,), (1,), 1, 9, 0)


def test_prompts_outputs_and_both() -> None:
    """A prompt of 5 in chunks of 3 and 2, one of a single token, then decodes."""
    workload = Workload.of("w", [0.0, 0.0], [5, 1], [4, 4])
    found = iteration_phases([batch({0: 3}), batch({0: 2, 1: 1}), batch({0: 1}), batch({0: 1, 1: 1})], workload)
    assert found == [Phase.PREFILL, Phase.PREFILL, Phase.DECODE, Phase.DECODE]


def test_a_chunk_beside_a_decode_is_mixed() -> None:
    workload = Workload.of("w", [0.0, 0.0], [3, 8], [4, 4])
    assert iteration_phases([batch({0: 3}), batch({0: 1, 1: 4})], workload) == [Phase.PREFILL, Phase.MIXED]


def test_what_was_dropped_is_prefill_again() -> None:
    """Two tokens of output were there when it lost its cache: 3 + 2 are computed again, then it decodes."""
    workload = Workload.of("w", [0.0, 0.0], [3, 8], [4, 4])
    found = iteration_phases(
        [batch({0: 3}), batch({0: 1}), batch({1: 8}, (0,)), batch({0: 5}), batch({0: 1})], workload
    )
    assert found == [Phase.PREFILL, Phase.DECODE, Phase.PREFILL, Phase.PREFILL, Phase.DECODE]


def test_what_was_dropped_unseen_is_prefill_again() -> None:
    """A decision may take a cache and launch nothing; then no iteration tells it."""
    workload = Workload.of("w", [0.0], [3], [4])
    found = iteration_phases([batch({0: 3}), batch({0: 1}), batch({0: 5}), batch({0: 1})], workload)
    assert found == [Phase.PREFILL, Phase.DECODE, Phase.PREFILL, Phase.DECODE]
