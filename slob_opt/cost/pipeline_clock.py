"""Times of an iteration through the stages and links of a pipeline."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from slob_opt.cost.roofline import CardGroup
from slob_opt.cost.stage_clock import PS_PER_NS, StageClock, Work
from slob_opt.problem.cluster import Cluster
from slob_opt.problem.device import Link
from slob_opt.problem.model import ModelSpec
from slob_opt.problem.placement import Pipeline

TOKEN_ID_BYTES = 4
"""Bytes of a token id on its way back to the first stage."""


Hops = tuple[tuple[int, ...], tuple[int, ...], int]
"""Busy and latency nanoseconds of each link forward, and the time back."""

COMPUTE_BOUND_TOKENS = 512
"""Computed tokens from which a batch takes time in proportion to its tokens on all cards of the catalogue, nearly."""


@dataclass(frozen=True, slots=True)
class IterationTimes:
    """Times of one iteration, nanoseconds.

    Attributes
    ----------
    stage_ns
        Of each stage.
    busy_ns, latency_ns
        Of each link forward: how long the message occupies it, and how long it travels beside that.
    return_ns
        From the last stage back to the first, whole.
    """

    stage_ns: tuple[int, ...]
    busy_ns: tuple[int, ...]
    latency_ns: tuple[int, ...]
    return_ns: int

    @property
    def total_ns(self) -> int:
        """Time of an iteration that meets no other."""
        return sum(self.stage_ns) + sum(self.busy_ns) + sum(self.latency_ns) + self.return_ns


class PipelineClock:
    """Clocks of the stages of one pipeline, and its links.

    Parameters
    ----------
    stages
        Of the pipeline, in order.
    links
        Between neighbouring stages, one fewer than there are stages.
    back
        From the last stage to the first; ``None`` for a single stage.
    """

    def __init__(self, stages: Sequence[StageClock], links: Sequence[Link], back: Link | None) -> None:
        self.stages, self.links, self.back = tuple(stages), tuple(links), back
        model = stages[0].model
        self.windows = stages[0].windows
        self.row_bytes = model.hidden_size * model.activation_bits / 8
        self.kv_ps = tuple(stage.kv_ps for stage in self.stages)
        self._decodes: dict[int, tuple[tuple[int, ...], Hops]] = {}
        self._prompt_token_s: tuple[float, float] | None = None

    @classmethod
    def of(cls, cluster: Cluster, model: ModelSpec, pipeline: Pipeline) -> PipelineClock:
        """Return the clock of a pipeline of a placement."""
        link = cluster.link
        stages = []
        for stage in pipeline.stages:
            pairs = [(a, b) for a in stage.cards for b in stage.cards if a != b]
            slowest = min((link(a, b) for a, b in pairs), key=lambda x: x.bytes_per_s, default=None)
            group = CardGroup(cluster.devices[stage.cards[0]], len(stage.cards), slowest)
            stages.append(StageClock(group, model, stage.first, stage.end))
        heads = [stage.cards[0] for stage in pipeline.stages]
        links = [link(a, b) for a, b in itertools.pairwise(heads)]
        return cls(stages, links, link(heads[-1], heads[0]) if len(heads) > 1 else None)

    def hops(self, tokens: int, rows: int) -> Hops:
        """Return busy and latency nanoseconds of each link forward, and the time back, of a number of tokens."""
        size = tokens * self.row_bytes
        busy = tuple(int(size / link.bytes_per_s * 1e9) for link in self.links)
        latency = tuple(int(link.latency_s * 1e9) for link in self.links)
        if self.back is None:
            return busy, latency, 0
        return busy, latency, int((rows * TOKEN_ID_BYTES / self.back.bytes_per_s + self.back.latency_s) * 1e9)

    def times(self, work: Work) -> IterationTimes:
        """Return the times of one iteration."""
        stage_ns = tuple(stage.ps(work) // PS_PER_NS for stage in self.stages)
        return IterationTimes(stage_ns, *self.hops(work.tokens, work.rows))

    def total_s(self, work: Work) -> float:
        """Return the time of one iteration that meets no other, seconds."""
        return self.times(work).total_ns / 1e9

    def bottleneck_s(self, work: Work) -> float:
        """Return the longest time that one stage or link is busy in an iteration, seconds."""
        times = self.times(work)
        return max(*times.stage_ns, *times.busy_ns, 0) / 1e9

    def decode_base(self, rows: int) -> tuple[tuple[int, ...], Hops]:
        """Return what packed decodes take on each stage beside reading the cache, ps, and their hops."""
        known = self._decodes.get(rows)
        if known is None:
            none = (0,) * len(self.windows)
            work = Work(rows, rows, none, none, rows, 0)
            known = self._decodes[rows] = (tuple(stage.ps(work) for stage in self.stages), self.hops(rows, rows))
        return known

    def pace_s(self, rows: int, kv_tokens: int, num_lanes: int = 1) -> float:
        """Return the time between the tokens of requests that decode in so many lanes alike, seconds.

        Parameters
        ----------
        rows, kv_tokens
            Decodes of a lane, and cached tokens that they read; layers with a window are taken to read all of them.
        num_lanes
            Lanes in flight.
        """
        base, (busy, latency, back) = self.decode_base(rows)
        times = [ps + sum(slopes) * kv_tokens for ps, slopes in zip(base, self.kv_ps, strict=True)]
        total = sum(times) / PS_PER_NS + sum(busy) + sum(latency) + back
        return max(total, num_lanes * max(max(times) / PS_PER_NS, *busy, 0)) / 1e9

    @property
    def prompt_token_s(self) -> float:
        """Time of one more prompt token on the bottleneck in a batch that is bound by compute, seconds."""
        return self._prompt_token()[0]

    @property
    def whole_prompt_token_s(self) -> float:
        """The same on all stages together: what the streams of its own batch wait for it, seconds."""
        return self._prompt_token()[1]

    def _prompt_token(self) -> tuple[float, float]:
        if self._prompt_token_s is None:
            none = (0,) * len(self.windows)
            few, many = (
                self.times(Work(tokens, 1, none, none, 0, 1))
                for tokens in (COMPUTE_BOUND_TOKENS, 2 * COMPUTE_BOUND_TOKENS)
            )
            busiest = (max(*times.stage_ns, *times.busy_ns, 0) / 1e9 for times in (few, many))
            first, second = busiest
            more_s = max((second - first) / COMPUTE_BOUND_TOKENS, 1e-9)
            whole_s = (many.total_ns - few.total_ns) / 1e9 / COMPUTE_BOUND_TOKENS
            self._prompt_token_s = more_s, max(whole_s, more_s)
        return self._prompt_token_s
