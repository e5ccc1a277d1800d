"""Days with quiet and busy hours: a preset's requests at a rate of its own each hour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slob_opt.errors import InputError
from slob_opt.problem.presets import load_preset, sample_preset
from slob_opt.problem.workload import NS_PER_S, Workload

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Day:
    """A day of a preset.

    Attributes
    ----------
    preset
        Name.
    offered
        Offered concurrency of each hour, above 0.
    hour_s
        Length of what is called an hour, seconds; shorter for quick looks.
    """

    preset: str
    offered: tuple[float, ...]
    hour_s: float = HOUR_S

    def __post_init__(self) -> None:
        load_preset(self.preset)
        if not self.offered or min(self.offered) <= 0:
            raise InputError(f"a day of {self.preset} needs an offered concurrency above 0 for each hour")

    def sample(self, service_s: float, seed: int) -> Workload:
        """Return the requests of the day; each hour is an even load, under way when it begins.

        Parameters
        ----------
        service_s
            E[S], mean time of a request alone, seconds.
        seed
            The same seed gives the same day.
        """
        parts = [
            sample_preset(
                self.preset, np.random.default_rng([seed, hour]), duration_s=self.hour_s,
                rate_per_s=offered / service_s, is_even=True,
            )
            for hour, offered in enumerate(self.offered)
        ]  # fmt: skip
        return one_after_another(f"{self.preset}-day", parts, self.hour_s)


def one_after_another(name: str, parts: Sequence[Workload], length_s: float) -> Workload:
    """Return workloads of one length each as one; sessions are forgotten."""
    step = round(length_s * NS_PER_S)
    first = parts[0]
    return Workload(
        name,
        np.concatenate([part.arrival_ns + index * step for index, part in enumerate(parts)]),
        np.concatenate([part.prompt_tokens for part in parts]),
        np.concatenate([part.output_tokens for part in parts]),
        np.concatenate([part.max_new_tokens for part in parts]),
        np.concatenate([part.priority for part in parts]),
        None if first.ttft_s is None else np.concatenate([part.ttft_s for part in parts if part.ttft_s is not None]),
        None if first.tpot_s is None else np.concatenate([part.tpot_s for part in parts if part.tpot_s is not None]),
    )
