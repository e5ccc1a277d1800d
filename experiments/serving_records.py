"""Simulated runs as JSON with stable keys, and as records for the tracking store."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.provenance import Provenance
from experiments.run_record import RowTable, RunRecord, flatten
from experiments.serving_run import ServingRun

SCHEMA_VERSION = 1
"""Of summary.json."""

POINT_METRICS = (
    "mean_satisfaction", "p10_satisfaction", "p1_satisfaction", "relative_satisfaction", "ttft_p50_s", "ttft_p99_s",
    "tpot_p50_s", "tpot_p99_s", "e2e_p99_s", "longest_stall_p99_s", "num_requests", "num_unfinished", "num_rejected",
    "goodput", "output_tokens_per_s", "bubble_share", "utilisation", "padding_waste",
)  # fmt: skip
"""Figures of a run that the store keeps as metrics; columns of a study's rows by the same names."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """A policy's run with its figures.

    Attributes
    ----------
    run
        The run.
    summary
        All figures by name.
    point
        The figures of a study's row.
    """

    run: ServingRun
    summary: Mapping[str, float]
    point: Mapping[str, Any]

    def as_json(self) -> dict[str, object]:
        """Return plain JSON; a figure that isn't finite is null."""
        return {
            **self.run.choice.effective(),
            "rejections": [{"reason": reason, "requests": count} for reason, count in self.run.reasons],
            "summary": {name: _finite(value) for name, value in self.summary.items()},
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def point_metrics(row: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    """Return a row's figures as metrics of the closed list."""
    found = ((name, row.get(name)) for name in POINT_METRICS)
    return tuple((name, float(v)) for name, v in found if v is not None and math.isfinite(float(v)))


def simulation_records(
    config: Mapping[str, object], provenance: Provenance, simulated: Sequence[Simulated], summary_file: str
) -> tuple[RunRecord, tuple[RunRecord, ...]]:
    """Return the parent's record and one a policy."""
    tags = (*provenance.as_tags().items(), ("command", "simulate"))
    parent = RunRecord("simulate", tags, flatten(dict(config)), files=(("", summary_file),))
    children = tuple(
        RunRecord(
            item.run.choice.label,
            (*tags, ("policy", item.run.choice.policy)),
            flatten(item.run.choice.effective()),
            point_metrics(item.point),
            tables=(RowTable("summary.csv", ("name", "value"), tuple(item.summary.items())),),
        )
        for item in simulated
    )
    return parent, children


def curve_records(study: str, rows: Iterable[Mapping[str, Any]]) -> tuple[RunRecord, ...]:
    """Return one record per cluster, preset, engine and policy of rows of kind ``"point"``, its points as a table.

    Metrics are means over the points; a record a point would be thousands.
    """
    curves: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["kind"] == "point":
            key = tuple(str(row[name]) for name in ("cluster", "preset", "engine", "policy"))
            curves.setdefault(key, []).append(row)
    columns = ("load", "rate_per_s", "seed", *POINT_METRICS)
    records = []
    for (cluster, preset, engine, policy), points in curves.items():
        values = {name: [v for p in points if (v := p.get(name)) is not None] for name in POINT_METRICS}
        records.append(
            RunRecord(
                f"{cluster}/{preset}/{engine}/{policy}",
                (("study", study), ("policy", policy), ("cluster", cluster), ("preset", preset), ("engine", engine)),
                flatten({"params": points[0]["params"], "num_points": len(points)}),
                tuple((name, float(sum(found) / len(found))) for name, found in values.items() if found),
                tables=(RowTable("points.csv", columns, tuple(tuple(p.get(c) for c in columns) for p in points)),),
            )
        )
    return tuple(records)
