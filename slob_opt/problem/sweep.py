"""Semi-sparse sweep: workloads by offered concurrency a = rate x E[S], from nearly idle on into overload.

``E[S]`` is the mean time that a request takes when it is alone on the system, so a is the mean number of requests in
flight if none had to wait (Little 1961; offered load in erlangs). Systems differ in E[S], so equal a compares them
where equal rates don't.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from slob_opt.errors import InputError
from slob_opt.problem.device import require_positive
from slob_opt.problem.presets.sampling import sample_preset
from slob_opt.problem.workload import Workload

SEMI_SPARSE = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Offered concurrency of a site that is semi-sparse. Chosen: dense where batching begins to matter."""


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One load of a sweep.

    Attributes
    ----------
    offered
        Offered concurrency that was asked for.
    rate_per_s
        Mean rate that follows, requests/s.
    seed
        Seed of the sample.
    workload
        The sample; its own rate differs from the mean by chance.
    """

    offered: float
    rate_per_s: float
    seed: int
    workload: Workload


def offered_levels(most: float = 16.0) -> tuple[float, ...]:
    """Return offered concurrencies from 0.05 to 4 and on, by half as much again at a time, to at least `most`.

    Parameters
    ----------
    most
        Where overload is certain, as twice the sequences that the system can hold; up to 4 adds nothing.

    Examples
    --------
    >>> offered_levels(8.0)[-4:]
    (3.0, 4.0, 6.0, 9.0)
    """
    require_positive(most, "most")
    levels = list(SEMI_SPARSE)
    while levels[-1] < most:
        levels.append(levels[-1] * 1.5)
    return tuple(levels)


def rate_at(offered: float, service_s: float) -> float:
    """Return the mean rate, requests/s, that offers a concurrency to a system with a mean service time in seconds."""
    require_positive(offered, "offered")
    require_positive(service_s, "service_s")
    return offered / service_s


def sweep(
    service_s: float,
    sample: Callable[[float, np.random.Generator], Workload],
    *,
    levels: Sequence[float] = SEMI_SPARSE,
    seeds: Sequence[int] = (0,),
) -> Iterator[SweepPoint]:
    """Yield one workload per level and seed, made when it's asked for.

    Parameters
    ----------
    service_s
        E[S], mean time of a request alone, seconds.
    sample
        From a rate (requests/s) and a generator to a workload, as ``lambda rate, rng: at_rate(trace, rate, seed=rng)``.
    levels
        Offered concurrencies.
    seeds
        Each level is sampled with each. A point depends on its own level and seed only, so that a shorter sweep has the
        same workloads.

    Raises
    ------
    InputError
        When a number is out of range, or a sample has no request.
    """
    for offered in levels:
        rate = rate_at(offered, service_s)
        for seed in seeds:
            if seed < 0:
                raise InputError(f"seed is {seed}, expected at least 0")
            rng = np.random.default_rng([seed, round(offered * 1e6)])
            yield SweepPoint(offered, rate, seed, sample(rate, rng))


def sweep_preset(
    name: str,
    service_s: float,
    *,
    levels: Sequence[float] = SEMI_SPARSE,
    seeds: Sequence[int] = (0,),
    duration_s: float = 3600.0,
    variant: str | None = None,
) -> Iterator[SweepPoint]:
    """Yield the sweep of a preset, each point an even load for a time.

    Parameters
    ----------
    name, variant
        Preset, see :func:`~slob_opt.problem.presets.sampling.sample_preset`.
    service_s, levels, seeds
        As :func:`sweep`.
    duration_s
        Length of each workload, seconds.

    Examples
    --------
    >>> point = next(sweep_preset("shop_floor_qa", 2.0, levels=(1.0,)))
    >>> point.rate_per_s, 1500 < point.workload.num_requests < 2100
    (0.5, True)
    """

    def sample(rate: float, rng: np.random.Generator) -> Workload:
        return sample_preset(name, rng, duration_s=duration_s, rate_per_s=rate, is_even=True, variant=variant)

    return sweep(service_s, sample, levels=levels, seeds=seeds)
