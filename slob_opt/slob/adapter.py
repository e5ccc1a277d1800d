"""The multilevel adapter: from what arrived lately to the level that should serve.

The offered concurrency a = rate x E[S] is estimated over a sliding window, with the lengths of requests that finished;
requests that wait count as arrivals that have to be served within the window as well. The adapter climbs to the lowest
level of which the load takes no more than a share, and goes down only to one on which it would take a smaller share:
that gap, and a least time on each level, keep it from swinging. A rush is seen in a shorter window as well, so that it
climbs within minutes; going down waits for the long one.

The paper's abstract has the levels and the trade; thresholds, window and dwell are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slob_opt.errors import InputError
from slob_opt.problem.workload import NS_PER_S
from slob_opt.slob.ladder import Ladder, Lengths


@dataclass(frozen=True, slots=True)
class Seen:
    """What a server saw since the decision before.

    Attributes
    ----------
    now_ns
        Nanoseconds.
    arrivals, prompt_tokens
        Requests that arrived, and tokens of their prompts.
    finished, output_tokens
        Requests that finished, and tokens they put out.
    waiting
        Requests that wait for KV now.
    """

    now_ns: int
    arrivals: int
    prompt_tokens: int
    finished: int
    output_tokens: int
    waiting: int


@dataclass(frozen=True, slots=True)
class AdapterState:
    """What the adapter remembers.

    Attributes
    ----------
    level
        The level it decided for.
    since_ns
        When it did; ``None`` at the start, where it may go at once.
    seen
        What came within the window, the newest last.
    concurrency
        The offered concurrency it estimated last; ``None`` before the first decision.
    """

    level: int
    since_ns: int | None = None
    seen: tuple[Seen, ...] = ()
    concurrency: float | None = None


@dataclass(frozen=True, slots=True)
class Adapter:
    """Picks levels of a ladder.

    Attributes
    ----------
    ladder
        Levels.
    window_s
        Time over which arrivals are counted, seconds.
    climb_window_s
        A shorter time over which they are counted too: the larger rate of both counts.
    period_s
        Time between decisions, seconds.
    dwell_s
        Least time on a level, seconds.
    up_share
        Share of what a level carries above which it climbs.
    down_share
        Share of what a lower level carries up to which it goes down.
    margin
        Standard deviations that are added to the number of arrivals, as if it were Poisson: bursts that a short window
        can't tell from a rising rate.
    lowest
        Lowest level it may choose.

    Raises
    ------
    InputError
        When a parameter is out of range.

    Notes
    -----
    Nothing is kept here: the state goes in and comes out, so that decisions can be replayed.
    """

    ladder: Ladder
    window_s: float = 600.0
    climb_window_s: float = 180.0
    period_s: float = 60.0
    dwell_s: float = 600.0
    up_share: float = 0.7
    down_share: float = 0.5
    margin: float = 1.0
    lowest: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.period_s <= self.window_s:
            raise InputError(f"period {self.period_s} s and window {self.window_s} s, expected 0 < period <= window")
        if not self.period_s <= self.climb_window_s <= self.window_s:
            raise InputError(
                f"climb_window_s is {self.climb_window_s}, expected from the period {self.period_s} to the window"
                f" {self.window_s}"
            )
        if self.dwell_s < 0 or self.margin < 0:
            raise InputError(f"dwell_s {self.dwell_s} and margin {self.margin}, expected at least 0")
        if not 0 < self.down_share <= self.up_share:
            raise InputError(f"down_share {self.down_share} and up_share {self.up_share}, expected 0 < down <= up")
        if not 0 <= self.lowest < len(self.ladder.levels):
            raise InputError(f"lowest level is {self.lowest} of {len(self.ladder.levels)}")

    def start(self) -> AdapterState:
        """Return the state before anything is known: the lowest level."""
        return AdapterState(self.lowest)

    def decide(self, state: AdapterState, now: Seen) -> AdapterState:
        """Return the state after a decision."""
        since = now.now_ns - round(self.window_s * NS_PER_S)
        seen = (*(one for one in state.seen if one.now_ns > since), now)
        lengths = self._lengths(seen)
        rate = max(self._rate(seen, window_s, now) for window_s in (self.window_s, self.climb_window_s))
        concurrency = rate * self.ladder.service_s(lengths)
        wanted = self._wanted(state.level, rate, lengths)
        dwelt = state.since_ns is None or now.now_ns - state.since_ns >= round(self.dwell_s * NS_PER_S)
        if wanted == state.level or not dwelt:
            return AdapterState(state.level, state.since_ns, seen, concurrency)
        return AdapterState(wanted, now.now_ns, seen, concurrency)

    def _rate(self, seen: tuple[Seen, ...], window_s: float, now: Seen) -> float:
        """Return the requests per second of a window, with its margin and what waits."""
        since = now.now_ns - round(window_s * NS_PER_S)
        arrivals = sum(one.arrivals for one in seen if one.now_ns > since)
        span_s = min(window_s, max(self.period_s, now.now_ns / NS_PER_S))
        return (arrivals + self.margin * math.sqrt(arrivals) + now.waiting) / span_s

    def _lengths(self, seen: tuple[Seen, ...]) -> Lengths:
        """Return the mean lengths of the window, those of the ladder where nothing came or finished."""
        arrivals, finished = sum(one.arrivals for one in seen), sum(one.finished for one in seen)
        prompt = sum(one.prompt_tokens for one in seen) / arrivals if arrivals else self.ladder.lengths.prompt
        output = sum(one.output_tokens for one in seen) / finished if finished else self.ladder.lengths.output
        return Lengths(prompt, output)

    def _wanted(self, level: int, rate: float, lengths: Lengths) -> int:
        """Return the level that suits a rate: with hysteresis, so depending on where it is."""
        top = len(self.ladder.levels) - 1
        carried = [self.ladder.rate(one, lengths) for one in range(top + 1)]
        if rate > self.up_share * carried[level]:
            return next((one for one in range(level, top + 1) if rate <= self.up_share * carried[one]), top)
        for one in range(self.lowest, level):
            if rate <= self.down_share * carried[one]:
                return one
        return level
