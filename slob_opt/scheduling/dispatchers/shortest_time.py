"""The pipeline on which a request is expected to be answered first, given how fast that pipeline is.

References
----------
Least expected response time, as join-shortest-expected-delay for servers of unequal speed: Selen, Adan & Kapodistria
2016, Approximate performance analysis of generalized join the shortest queue routing, section 1. Deviation: the delay
is that of a pipeline with lanes, by its clock: the prompt work before the request, its own prompt, and its tokens at
the pace of a batch with one stream more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from slob_opt.errors import InputError
from slob_opt.scheduling.dispatchers.blind import able, least
from slob_opt.scheduling.policy import ArrivalView


@dataclass(slots=True)
class ShortestTimeDispatcher:
    """Shortest expected time to the last token, on that pipeline.

    Attributes
    ----------
    expected_output
        Output tokens a request is taken to have; its `max_new_tokens` caps it.

    Raises
    ------
    InputError
        When that is below one token.
    """

    expected_output: int = 256
    name: str = "shortest-time"
    _turn: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.expected_output < 1:
            raise InputError(f"expected_output is {self.expected_output}, expected at least 1")

    def choose(self, view: ArrivalView) -> int | None:
        """Return the pipeline with the shortest expected time; equals take turns."""
        index = least(able(view), lambda i: self.expected_s(view, i), self._turn)
        self._turn = (index + 1) % len(view.limits)
        return index

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
        waits = 0.0
        if rows > limits.max_rows:  # it waits until the rows have worked off what is before it
            to_go = np.minimum(self.expected_output, columns.max_new[members]) - columns.generated[members]
            waits = float(np.maximum(to_go, 1).sum()) / limits.max_rows * pace
        return (queued + view.prompt) * clock.prompt_token_s + waits + tokens * pace
