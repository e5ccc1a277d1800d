"""Rows of serving studies, made up for tests of what is claimed from them."""

from __future__ import annotations

from typing import Any

from experiments.studies.serving_stats import AVERAGED


def row(
    policy: str, load: float, mean: float, *, p10: float | None = None, seed: int = 0, **more: Any
) -> dict[str, Any]:
    """A point with the same figures wherever nothing else is said."""
    base: dict[str, Any] = dict.fromkeys(AVERAGED, 0.0)
    return base | {
        "kind": "point", "role": "claims", "cluster": "c", "preset": "p", "engine": "ragged", "policy": policy,
        "params": "{}", "load": load, "rate_per_s": load / 10, "seed": seed, "mean_satisfaction": mean,
        "p10_satisfaction": mean if p10 is None else p10, "ttft_p99_s": 1.0, **more,
    }  # fmt: skip
