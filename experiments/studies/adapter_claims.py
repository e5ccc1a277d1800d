"""Claims and figures of the adapter study, from its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.studies.claims import claim, figure
from experiments.studies.jobs import Row
from experiments.study_contract import Claim

ADAPTER = "adapter"
"""What serves in rows of the adapter; fixed levels are ``level-0`` and on."""


@dataclass(frozen=True, slots=True)
class Served:
    """What served the days of a case, over its seeds.

    Attributes
    ----------
    serves
        The adapter, or a level.
    loss
        1 - mean satisfaction, mean over the seeds.
    card_s
        Card-seconds, likewise.
    """

    serves: str
    loss: float
    card_s: float


def by_case(rows: Sequence[Row]) -> dict[str, list[Served]]:
    """Return what served each case, the adapter first."""
    found: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        if row["kind"] == "day":
            found.setdefault(row["case"], {}).setdefault(row["serves"], []).append(row)
    return {
        case: [
            Served(
                serves, float(np.mean([row["loss"] for row in days])), float(np.mean([row["card_s"] for row in days]))
            )
            for serves, days in sorted(served.items(), key=lambda item: (item[0] != ADAPTER, item[0]))
        ]
        for case, served in found.items()
    }


def best_fixed(served: Sequence[Served]) -> Served | None:
    """Return the fixed level that loses least of those with no more card-seconds than the adapter; ``None`` of none."""
    adapter = served[0]
    return min((one for one in served[1:] if one.card_s <= adapter.card_s), key=lambda one: one.loss, default=None)


def gain_pct(served: Sequence[Served]) -> float | None:
    """Return by how much the adapter's loss is below that of the best fixed level within its card-seconds, per cent.

    ``None`` where no level is within them, or that level loses nothing.
    """
    fixed = best_fixed(served)
    if fixed is None or fixed.loss <= 0:
        return None
    return 100 * (1 - served[0].loss / fixed.loss)


def dominating(served: Sequence[Served]) -> list[str]:
    """Return the fixed levels that lose no more than the adapter with no more card-seconds, and less of either."""
    adapter = served[0]
    return [
        one.serves
        for one in served[1:]
        if one.loss <= adapter.loss
        and one.card_s <= adapter.card_s
        and (one.loss, one.card_s) != (adapter.loss, adapter.card_s)
    ]


def adapter_claims(rows: Sequence[Row]) -> tuple[Claim, ...]:
    """Return the claim: the smallest gain over the cases; it does not hold where a fixed level dominates."""
    cases = by_case(rows)
    gains = [gain_pct(served) for served in cases.values()]
    known = [gain for gain in gains if gain is not None]
    smallest = min(known) if known and len(known) == len(gains) else None
    found = claim("adapter.gain_pct", smallest, "%", ">=", 0.0)
    if found.holds and any(dominating(served) for served in cases.values()):
        found = replace(found, holds=False)
    return (found,)


def adapter_figures(rows: Sequence[Row]) -> list[Row]:
    """Return the figures that are reported without a target."""
    found = []
    for case, served in by_case(rows).items():
        adapter, fixed = served[0], best_fixed(served)
        note = "no fixed level within the card-seconds" if fixed is None else f"against {fixed.serves}"
        found.append(figure(f"{case}.gain", gain_pct(served), "%", note))
        found.append(figure(f"{case}.dominating_levels", len(dominating(served)), "", " ".join(dominating(served))))
        for one in served:
            found.append(figure(f"{case}.{one.serves}.loss", one.loss, "", "1 - mean satisfaction"))
            found.append(figure(f"{case}.{one.serves}.card_s", one.card_s, "s"))
        most = max(served[1:], key=lambda one: one.card_s, default=None)
        if most is not None and most.card_s > 0:
            saved = 100 * (1 - adapter.card_s / most.card_s)
            found.append(figure(f"{case}.card_seconds_saved", saved, "%", f"against {most.serves}, which uses most"))
    found.append(figure("failures", sum(row["kind"] == "failure" for row in rows), "days"))
    return found
