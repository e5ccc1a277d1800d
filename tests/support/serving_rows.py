"""Rows of a serving study, made by a formula so that means are known."""

from __future__ import annotations

from typing import Any


def point_row(policy: str, load: float, seed: int, mean: float, **more: Any) -> dict[str, Any]:
    """Return a row of kind ``point``."""
    return {
        "kind": "point", "study": "paper", "cluster": "two", "preset": "office_chat", "engine": "ragged",
        "policy": policy, "params": "{}", "load": load, "rate_per_s": load / 5, "seed": seed,
        "mean_satisfaction": mean, "p10_satisfaction": mean / 2, "goodput": 10 * mean,
        "ttft_deciles_s": [0.1 * (step + 1) / mean for step in range(21)],
        "tpot_deciles_s": [0.01 * (step + 1) for step in range(21)],
        **more,
    }  # fmt: skip


def sweep_rows() -> list[dict[str, Any]]:
    """Two policies, three loads, two seeds: they differ by 0, 0.2 and 0.3; at the last load the best has 0.4."""
    means = {"orca": (1.0, 0.6, 0.1), "slob": (1.0, 0.8, 0.4)}
    return [
        point_row(policy, load, seed, mean + (0.02 if seed and mean < 1 else 0.0))
        for policy, values in means.items()
        for load, mean in zip((0.1, 1.0, 4.0), values, strict=True)
        for seed in (0, 1)
    ]
