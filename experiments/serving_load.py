"""Offered concurrency of a system: how long a request takes there when it is alone, and the rate that follows."""

from __future__ import annotations

from experiments.serving_run import served_alone
from experiments.serving_setup import ServingSystem
from slob_opt.errors import InputError
from slob_opt.problem.presets import load_preset, sample_preset
from slob_opt.problem.sweep import rate_at
from slob_opt.problem.workload import Workload

PROBE_SEED = 20_241
"""Seed of the sample that service times are measured on. Chosen; apart from the seeds of runs."""

PROBE_REQUESTS = 2_000
"""Requests of that sample: E[S] within a few per cent."""


def probe(preset: str, variant: str | None = None) -> Workload:
    """Return the sample of a preset that mean lengths and service times are measured on."""
    duration_s = PROBE_REQUESTS / load_preset(preset).mean_rate
    return sample_preset(preset, PROBE_SEED, duration_s=duration_s, is_even=True, variant=variant)


def service_s(preset: str, system: ServingSystem, variant: str | None = None) -> float:
    """Return E[S]: the mean time of a preset's requests alone on their best pipeline, seconds.

    Raises
    ------
    InputError
        When the system can hold none of them.
    """
    found = served_alone(probe(preset, variant), system).service_s
    if not found > 0:
        raise InputError(f"{system.name} can hold no request of preset {preset}: its KV pool or context is too small")
    return found


def offered_rate(preset: str, system: ServingSystem, load: float, variant: str | None = None) -> float:
    """Return the rate of a preset, requests/s, that offers a system so many requests in flight."""
    return rate_at(load, service_s(preset, system, variant))
