"""The roles: a policy decides what a lane computes next, a dispatcher which pipeline gets a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from slob_opt.cost.pipeline_clock import PipelineClock
from slob_opt.scheduling.batch_plan import BatchPlan
from slob_opt.scheduling.columns import RequestColumns

IntArray = NDArray[np.int64]


class KvUse(StrEnum):
    """How a policy's requests take KV blocks: all they may ever need when they are admitted, or block by block."""

    RESERVE = "reserve"
    PAGED = "paged"


@dataclass(frozen=True, slots=True)
class PipelineLimits:
    """What a pipeline can hold.

    Attributes
    ----------
    num_lanes
        K, the micro-batches in flight.
    max_rows
        Most requests that hold KV at once; each lane may have ``max_rows // num_lanes`` of them.
    kv_blocks
        Blocks of its KV pool, the smallest over its stages.
    block_tokens
        Tokens of a block.
    max_chunk_tokens
        Most tokens that a micro-batch should compute; a policy that chunks keeps to it. ``None`` sets no limit.
    max_tokens
        Longest sequence of the model, tokens; ``None`` when it isn't known.
    """

    num_lanes: int
    max_rows: int
    kv_blocks: int
    block_tokens: int = 16
    max_chunk_tokens: int | None = None
    max_tokens: int | None = None

    def blocks_of(self, tokens: int) -> int:
        """Return the blocks that hold a number of tokens."""
        return -(-tokens // self.block_tokens)

    @property
    def lane_rows(self) -> int:
        """Most requests of a lane."""
        return max(1, self.max_rows // self.num_lanes)


class LaneView(NamedTuple):
    """What a policy sees of a lane that may launch now.

    Attributes
    ----------
    now_ns
        Nanoseconds.
    pipeline, lane
        Which.
    limits
        Of the pipeline.
    columns
        Of all requests; read-only. The true output length isn't among them.
    rows
        (R,) slots that hold KV in this lane, in order of admission.
    waiting
        (W,) slots that wait for the pipeline, preempted ones first, then by arrival.
    max_admissions
        How many of those this lane may take: its share of all, so that lanes stay alike, within the cap on rows.
    free_blocks
        Blocks that nobody holds.
    idle_rows
        Rows of the batch in this lane that have finished and are still computed.
    clock
        Estimates of iteration times.
    is_padded
        Whether the engine computes rectangles.
    """

    now_ns: int
    pipeline: int
    lane: int
    limits: PipelineLimits
    columns: RequestColumns
    rows: IntArray
    waiting: IntArray
    max_admissions: int
    free_blocks: int
    idle_rows: int
    clock: PipelineClock
    is_padded: bool


class Policy(Protocol):
    """Decides what a lane computes next.

    A policy keeps no request from one decision to the next; what it remembers must not depend on a clock or on chance
    other than its own seed, so that the same requests give the same decisions everywhere.

    Attributes
    ----------
    name
        As in the registry.
    kv_use
        How its requests take blocks.
    holds_finished
        Whether requests that end keep their row and blocks until the whole batch of the lane has ended.
    is_streamed
        Whether tokens are delivered as they come; otherwise with the last one of the batch.
    """

    name: str
    kv_use: KvUse
    holds_finished: bool
    is_streamed: bool

    def decide(self, view: LaneView) -> BatchPlan | None:
        """Return the next batch of a lane; ``None`` when it should wait for the next event."""
        ...


def is_clairvoyant(policy: Policy) -> bool:
    """Return whether a driver that knows true output lengths tells them a policy as predicted ones.

    Only policies that show what knowing the future is worth say so of themselves; no server can run them as they are.
    """
    return bool(getattr(policy, "is_clairvoyant", False))


class ArrivalView(NamedTuple):
    """What a dispatcher sees when a request arrives.

    Attributes
    ----------
    now_ns
        Nanoseconds.
    prompt, max_new
        Tokens of the new request.
    priority
        Its weight.
    columns
        Of all requests that are held.
    limits, clocks
        Of each pipeline.
    outstanding
        (P,) int64, requests each pipeline has taken and not finished.
    members
        For each pipeline the slots it has, running or waiting.
    ttft_s, tpot_s
        Targets of the new request, seconds; ``None`` where the metric's defaults hold.
    """

    now_ns: int
    prompt: int
    max_new: int
    priority: float
    columns: RequestColumns
    limits: Sequence[PipelineLimits]
    clocks: Sequence[PipelineClock]
    outstanding: IntArray
    members: Sequence[IntArray]
    ttft_s: float | None = None
    tpot_s: float | None = None


class Dispatcher(Protocol):
    """Chooses the pipeline of a request when it arrives."""

    name: str

    def choose(self, view: ArrivalView) -> int | None:
        """Return a pipeline; ``None`` rejects the request."""
        ...
