"""From a preset to a workload: days as they are, or an even load at a rate of one's choice."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slob_opt.errors import InputError
from slob_opt.problem.arrivals import MAX_DURATION_S, Seed, batches, gamma, on_off, poisson
from slob_opt.problem.device import require_positive
from slob_opt.problem.distributions import draw_tokens
from slob_opt.problem.presets.data import Preset, load_preset
from slob_opt.problem.sessions import sample_sessions
from slob_opt.problem.workload import NS_PER_S, Workload

IntArray = NDArray[np.int64]

WARM_UP_S = 3 * 3600.0
"""How long an even load runs before its clock starts, so that conversations under way send their later turns. Chosen:
none of 100,000 sampled conversations of ``office_chat`` lasted longer."""

MAX_REQUESTS = 100_000_000
"""Most requests of a sample. Chosen: some ten gigabytes of memory."""


def sample_preset(
    name: str,
    seed: Seed,
    *,
    days: float = 1.0,
    duration_s: float | None = None,
    rate_per_s: float | None = None,
    is_even: bool = False,
    variant: str | None = None,
) -> Workload:
    """Return a sample of a preset, with its service targets and its longest output as every client's limit.

    Parameters
    ----------
    name
        Preset, see :func:`~slob_opt.problem.presets.data.preset_ids`.
    seed
        Seed or generator; the same seed gives the same workload.
    days
        Length in days of the preset (nights left out, see :class:`~slob_opt.problem.presets.data.Preset`).
    duration_s
        Length in seconds instead of days; ``None`` takes `days`.
    rate_per_s
        Mean requests/s over a day; ``None`` keeps the preset's. More or fewer people or jobs of the same kind: batches
        and conversations keep their size, bursts of ``code_assistant`` their length.
    is_even
        Whether the hours' profile is left out, for steady states. Conversations are under way when the clock starts.
    variant
        Other prompt lengths; ``None`` takes the preset's.

    Raises
    ------
    InputError
        When preset or variant are unknown, a number is out of range, or no request falls into the time.
    """
    preset = load_preset(name)
    prompt = preset.prompt_of(variant)
    require_positive(days, "days")
    duration = days * preset.day_s if duration_s is None else duration_s
    require_positive(duration, "duration_s")
    factor = 1.0
    if rate_per_s is not None:
        require_positive(rate_per_s, "rate_per_s")
        factor = rate_per_s / preset.mean_rate
    # What runs before an even load of conversations starts is drawn as well.
    drawn_s = duration + (WARM_UP_S if is_even and preset.session is not None else 0.0)
    expected = factor * preset.mean_rate * drawn_s
    if duration > MAX_DURATION_S or expected > MAX_REQUESTS:
        raise InputError(
            f"{drawn_s:g} s at {factor * preset.mean_rate:.3g} requests/s are about {expected:,.0f} requests, expected"
            f" at most {MAX_REQUESTS:,} and {MAX_DURATION_S:g} s"
        )
    rng = np.random.default_rng(seed)
    session: IntArray | None = None
    if preset.session is not None:
        warm_up = WARM_UP_S if is_even else 0.0
        starts = _arrivals(preset, factor, duration + warm_up, rng, is_even) - round(warm_up * NS_PER_S)
        drawn = sample_sessions(starts, preset.session, rng)
        inside = (drawn.arrival_ns >= 0) & (drawn.arrival_ns < round(duration * NS_PER_S))
        arrival_ns, session = drawn.arrival_ns[inside], drawn.session[inside]
        prompts, outputs = drawn.prompt_tokens[inside], drawn.output_tokens[inside]
    else:
        arrival_ns = _arrivals(preset, factor, duration, rng, is_even)
        arrival_ns = arrival_ns[arrival_ns < round(duration * NS_PER_S)]
        assert prompt is not None  # a preset has one of the two
        prompts = draw_tokens(prompt, rng, arrival_ns.size)
        outputs = draw_tokens(preset.output, rng, arrival_ns.size)
    if not arrival_ns.size:
        raise InputError(
            f"no request of preset {name} falls into {duration:g} s at {factor * preset.mean_rate:.3g} requests/s"
        )
    size = arrival_ns.size
    return Workload(
        name=name if variant is None else f"{name}/{variant}",
        arrival_ns=arrival_ns,
        prompt_tokens=prompts,
        output_tokens=outputs,
        max_new_tokens=np.full(size, int(preset.output.most), np.int64),
        priority=np.ones(size),
        ttft_s=np.full(size, preset.ttft_s),
        tpot_s=np.full(size, preset.tpot_s),
        session=session,
    )


def _arrivals(preset: Preset, factor: float, duration_s: float, rng: np.random.Generator, is_even: bool) -> IntArray:
    """Arrivals of requests, or of conversations where the preset has them; those of a batch may lie past the end."""
    row = preset.arrivals
    kind = row["kind"]

    def steady(length_s: float) -> IntArray:
        if kind == "gamma":
            return gamma(factor * row["rate"], row["cv"], length_s, rng, is_stationary=True)
        if kind == "on/off":
            return on_off(factor * row["on_rate"], row["mean_on_s"], row["mean_off_s"], length_s, rng)
        return poisson(factor * row["per_day"] / preset.day_s, length_s, rng)

    profile = None if is_even else preset.profile
    starts = steady(duration_s) if profile is None else profile.applied(duration_s, steady)
    return batches(starts, row["mean_size"], row["mean_gap_s"], rng) if kind == "batches" else starts
