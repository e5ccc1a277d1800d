"""The pipeline on which a request is expected to be answered first, given how fast that pipeline is.

References
----------
Least expected response time, as join-shortest-expected-delay for servers of unequal speed: Selen, Adan & Kapodistria
2016, Approximate performance analysis of generalized join the shortest queue routing, section 1. Deviation: the delay
is that of a pipeline with lanes, by its clock: the prompt work before the request, its own prompt, and its tokens at
the pace of a batch with one stream more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slob_opt.scheduling.dispatchers.blind import able
from slob_opt.scheduling.policy import ArrivalView


@dataclass(frozen=True, slots=True)
class ShortestTimeDispatcher:
    """Shortest expected time to the last token, on that pipeline.

    Attributes
    ----------
    expected_output
        Output tokens a request is taken to have; its `max_new_tokens` caps it.
    """

    expected_output: int = 256
    name: str = "shortest-time"

    def choose(self, view: ArrivalView) -> int | None:
        """Return the pipeline with the shortest expected time, the first of equals."""
        return min(able(view), key=lambda index: (self.expected_s(view, index), index))

    def expected_s(self, view: ArrivalView, index: int) -> float:
        """Return the expected time from now to the request's last token on a pipeline, seconds."""
        columns, limits, clock = view.columns, view.limits[index], view.clocks[index]
        members = view.members[index]
        queued = float(np.maximum(columns.left[members] - 1, 0).sum())
        rows = int(members.size) + 1
        lanes = min(limits.num_lanes, rows)
        size = -(-min(rows, limits.max_rows) // lanes)
        cached = int(columns.cached[members].sum()) + view.prompt
        pace = clock.pace_s(size, -(-cached // lanes), lanes)
        tokens = min(self.expected_output, view.max_new)
        # Those beyond the rows wait for as many others to end.
        waits = max(0, rows - limits.max_rows) / limits.max_rows * tokens * pace
        return (queued + view.prompt) * clock.prompt_token_s + waits + tokens * pace
