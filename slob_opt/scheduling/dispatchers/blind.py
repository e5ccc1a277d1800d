"""Dispatchers that look at no more than how many requests each pipeline has.

References
----------
Mitzenmacher 2001, The power of two choices in randomized load balancing, IEEE TPDS 12(10). Round robin and least
outstanding requests are what nginx (``least_conn``) and the routers of vLLM and SGLang offer. Deviations: pipelines
whose KV pool or context can never hold the request are left out, and equals take turns, so that a trickle of requests
doesn't always meet the first pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from slob_opt.scheduling.policy import ArrivalView


def able(view: ArrivalView) -> list[int]:
    """Return the pipelines that could hold a request; all when none could, so that the scheduler tells why."""
    found = [
        index
        for index, limits in enumerate(view.limits)
        if limits.blocks_of(view.prompt + view.max_new) <= limits.kv_blocks
        and (limits.max_tokens is None or view.prompt + view.max_new <= limits.max_tokens)
    ]
    return found or list(range(len(view.limits)))


def least(options: Sequence[int], key: Callable[[int], float], turn: int) -> int:
    """Return the option with the least key; of equals the first one from `turn` on, in a ring."""
    keys = {index: key(index) for index in options}
    lowest = min(keys.values())
    equals = [index for index in options if keys[index] == lowest]
    return next((index for index in equals if index >= turn), equals[0])


@dataclass(slots=True)
class RandomDispatcher:
    """Any pipeline, each with the same chance.

    Attributes
    ----------
    seed
        Of the choices.
    """

    seed: int = 0
    name: str = "random"
    _rng: np.random.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)

    def choose(self, view: ArrivalView) -> int | None:
        """Return a pipeline by chance."""
        options = able(view)
        return options[int(self._rng.integers(len(options)))]


@dataclass(slots=True)
class RoundRobinDispatcher:
    """The next pipeline in turn."""

    name: str = "round-robin"
    _turn: int = field(default=0, init=False, repr=False)

    def choose(self, view: ArrivalView) -> int | None:
        """Return the next pipeline that could hold the request."""
        options = set(able(view))
        size = len(view.limits)
        for offset in range(size):
            index = (self._turn + offset) % size
            if index in options:
                self._turn = (index + 1) % size
                return index
        return None


@dataclass(slots=True)
class WeightedDispatcher:
    """Any pipeline, with a chance in proportion to the tokens/s that it decodes with all its rows in use.

    Attributes
    ----------
    seed
        Of the choices.
    """

    seed: int = 0
    name: str = "weighted"
    _rng: np.random.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)

    def choose(self, view: ArrivalView) -> int | None:
        """Return a pipeline by chance, a fast one more often."""
        options = able(view)
        rates = np.array([self.rate(view, index) for index in options])
        return options[int(self._rng.choice(len(options), p=rates / rates.sum()))]

    @staticmethod
    def rate(view: ArrivalView, index: int) -> float:
        """Return the tokens/s of a pipeline with all its rows in use, contexts left out."""
        limits = view.limits[index]
        rows = limits.lane_rows * limits.num_lanes
        return rows / view.clocks[index].pace_s(limits.lane_rows, 0, limits.num_lanes)


@dataclass(slots=True)
class LeastOutstandingDispatcher:
    """The pipeline with the fewest requests; equals take turns."""

    name: str = "least-outstanding"
    _turn: int = field(default=0, init=False, repr=False)

    def choose(self, view: ArrivalView) -> int | None:
        """Return the least loaded pipeline; requests count from when they are sent there."""
        index = least(able(view), lambda i: int(view.outstanding[i]), self._turn)
        self._turn = (index + 1) % len(view.limits)
        return index


@dataclass(slots=True)
class PowerOfTwoDispatcher:
    """The less loaded of two pipelines drawn by chance.

    Attributes
    ----------
    seed
        Of the draws.
    """

    seed: int = 0
    name: str = "power-of-two"
    _rng: np.random.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)

    def choose(self, view: ArrivalView) -> int | None:
        """Return the less loaded of two different pipelines."""
        options = able(view)
        if len(options) > 1:
            options = [options[i] for i in self._rng.choice(len(options), 2, replace=False).tolist()]
        return min(options, key=lambda index: int(view.outstanding[index]))
