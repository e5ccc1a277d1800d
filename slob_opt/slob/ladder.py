"""The ladder of levels: which pipelines serve, from few cards and short answers to all cards and many requests.

Abstract of the paper: a "multilevel adapter" trades "resource use against inference speed". A level is a set of
pipelines; levels that need as many cards or more, carry no more requests and answer no sooner than another are left
out. Which level suits a load is told in offered concurrency a = rate x E[S], with E[S] the time a typical request takes
alone on the fastest pipeline of the ladder: one number for all levels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slob_opt.cost.pipeline_clock import PipelineClock
from slob_opt.cost.stage_clock import PS_PER_S, Work
from slob_opt.errors import InputError
from slob_opt.problem.placement import Pipeline
from slob_opt.scheduling.policy import PipelineLimits

READING_TPOT_S = 1 / 5.3
"""Slowest pace of a stream that is as good as any, seconds a token: reading speed, see :mod:`slob_opt.metrics`."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean lengths of the requests that a ladder is measured by.

    Attributes
    ----------
    prompt, output
        Tokens, above zero.
    """

    prompt: float
    output: float

    def __post_init__(self) -> None:
        for name in ("prompt", "output"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"mean {name} length is {value}, expected a finite number above zero")


@dataclass(frozen=True, slots=True)
class Server:
    """A pipeline as a level sees it.

    Attributes
    ----------
    pipeline, limits, clock
        What serves.
    """

    pipeline: Pipeline
    limits: PipelineLimits
    clock: PipelineClock

    def service_s(self, lengths: Lengths) -> float:
        """Return the time of a request alone, seconds."""
        clock = self.clock
        hops = sum(link.latency_s for link in clock.links)
        prompt_s = lengths.prompt * sum(_prompt_token_s(clock, stage) for stage in range(len(clock.stages))) + hops
        return prompt_s + lengths.output * clock.pace_s(1, round(lengths.prompt + lengths.output / 2))

    def rows(self, lengths: Lengths, tpot_s: float) -> int:
        """Return how many requests of a lane fit its share of KV and still stream at a pace; at least one."""
        limits = self.limits
        tokens = lengths.prompt + lengths.output
        fits = limits.kv_blocks // max(1, math.ceil(tokens / limits.block_tokens)) // limits.num_lanes
        low, high = 1, max(1, min(fits, limits.lane_rows))
        context = lengths.prompt + lengths.output / 2
        while low < high:
            middle = (low + high + 1) // 2
            if self.clock.pace_s(middle, round(middle * context), limits.num_lanes) <= tpot_s:
                low = middle
            else:
                high = middle - 1
        return low

    def rate(self, lengths: Lengths, tpot_s: float = READING_TPOT_S) -> float:
        """Return the requests per second that it can carry: its bottleneck's time, or KV in flight, is used up."""
        rows, lanes = self.rows(lengths, tpot_s), self.limits.num_lanes
        context = round(rows * (lengths.prompt + lengths.output / 2))
        base, (busy, _, _) = self.clock.decode_base(rows)
        steps = [ps + sum(slopes) * context for ps, slopes in zip(base, self.clock.kv_ps, strict=True)]
        decode_s = max(max(steps) / PS_PER_S, max(busy, default=0) / 1e9)
        by_time = 1 / (lengths.prompt * self.clock.prompt_token_s + lengths.output * decode_s / rows)
        pace_s = self.clock.pace_s(rows, context, lanes)
        return min(by_time, lanes * rows / (lengths.output * pace_s))


def _prompt_token_s(clock: PipelineClock, stage: int) -> float:
    """Time of one prompt token on a stage in a batch that is bound by compute, seconds."""
    none = (0,) * len(clock.windows)
    few, many = (clock.stages[stage].ps(Work(tokens, 1, none, none, 0, 1)) for tokens in (512, 1024))
    return max(many - few, 0) / 512 / PS_PER_S


@dataclass(frozen=True, slots=True)
class Level:
    """Pipelines that serve together.

    Attributes
    ----------
    name
        Shown in tables.
    servers
        Places of its pipelines among those of the ladder, ascending.
    cards
        Cards that hold weights of it.
    rate_per_s, service_s
        For the lengths the ladder was made for: requests per second that it carries, and time of one alone.
    """

    name: str
    servers: tuple[int, ...]
    cards: frozenset[int]
    rate_per_s: float
    service_s: float


@dataclass(frozen=True, slots=True)
class Ladder:
    """Levels in order of what they carry.

    Attributes
    ----------
    servers
        All pipelines, each once.
    levels
        From the one that carries least to the one that carries most.
    lengths
        What it was made for.
    """

    servers: tuple[Server, ...]
    levels: tuple[Level, ...]
    lengths: Lengths

    @classmethod
    def of(cls, servers: Sequence[Server], levels: Sequence[tuple[str, Sequence[int]]], lengths: Lengths) -> Ladder:
        """Return the ladder of candidate levels, without those that another one beats.

        Parameters
        ----------
        servers
            All pipelines.
        levels
            Name and pipelines of each candidate.
        lengths
            Mean lengths to measure them by.

        Raises
        ------
        InputError
            When there is no candidate, or one names a pipeline that isn't there.
        """
        if not levels:
            raise InputError("a ladder needs at least one level")
        rates = [server.rate(lengths) for server in servers]
        times = [server.service_s(lengths) for server in servers]
        made = []
        for name, places in levels:
            held = tuple(sorted(set(places)))
            if not held or held[0] < 0 or held[-1] >= len(servers):
                raise InputError(f"level {name} has pipelines {list(places)}, expected some of 0 to {len(servers) - 1}")
            cards = frozenset(card for place in held for card in servers[place].pipeline.cards)
            made.append(Level(name, held, cards, sum(rates[p] for p in held), min(times[p] for p in held)))
        made.sort(key=lambda level: (len(level.cards), -level.rate_per_s, level.service_s))
        kept: list[Level] = []
        for level in made:
            if not any(
                len(other.cards) <= len(level.cards)
                and other.rate_per_s >= level.rate_per_s
                and other.service_s <= level.service_s
                for other in kept
            ):
                kept.append(level)
        kept.sort(key=lambda level: (level.rate_per_s, len(level.cards)))
        return cls(tuple(servers), tuple(kept), lengths)

    def rate(self, level: int, lengths: Lengths) -> float:
        """Return the requests per second that a level carries of such requests."""
        return sum(self.servers[place].rate(lengths) for place in self.levels[level].servers)

    def service_s(self, lengths: Lengths) -> float:
        """Return E[S]: the time of a request alone on the fastest pipeline, seconds."""
        return min(server.service_s(lengths) for server in self.servers)

    def capacity(self, level: int, lengths: Lengths) -> float:
        """Return the offered concurrency that a level carries."""
        return self.rate(level, lengths) * self.service_s(lengths)
