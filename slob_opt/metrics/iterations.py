"""One iteration of one micro-batch, as a simulator or a runtime tells it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Iteration(NamedTuple):
    """A micro-batch on its way through a pipeline, once.

    Attributes
    ----------
    pipeline
        Number of the pipeline.
    lane
        Number of the lane in it: which of the micro-batches in flight this is.
    requests
        Requests of the batch by their number in the workload.
    tokens
        For each of them, tokens that it computes here: 1 is a decode, or a prompt's (last) single token.
    preempted
        Requests whose KV was dropped to make room for this batch; not those that gave it up in a decision that launched
        nothing.
    start_ns, end_ns
        For each stage, when it began and when it ended this batch, nanoseconds.
    back_ns
        When the batch's tokens were back at the head of the pipeline, nanoseconds.
    computed_tokens
        Tokens that each stage computed, with pads.
    padding_tokens
        Pads among them.
    """

    pipeline: int
    lane: int
    requests: tuple[int, ...]
    tokens: tuple[int, ...]
    preempted: tuple[int, ...]
    start_ns: tuple[int, ...]
    end_ns: tuple[int, ...]
    back_ns: int
    computed_tokens: int
    padding_tokens: int


IterationObserver = Callable[[Iteration], None]
"""Takes iterations in the order in which their tokens are back."""
