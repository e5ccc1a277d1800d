"""Rows of results as runs for the tracking store: one per instance, method and seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.run_record import RunRecord, flatten

_METRICS = {
    "value": "objective",
    "bound": "bound",
    "gap_pct": "gap_pct",
    "optimum_gap_pct": "best_gap_pct",
    "wall_s": "wall_s",
    "solve_s": "solve_s",
    "headroom_bytes": "headroom_bytes",
    "num_pipelines": "num_pipelines",
    "num_cards_used": "num_devices_used",
}
"""Metric of the closed list for each column."""

_PARAMS = (
    "instance", "fingerprint", "objective", "in_flight", "links", "num_devices", "num_types", "num_layers", "method",
    "seed", "time_limit_s",
)  # fmt: skip


def result_records(study: str, rows: Sequence[dict[str, Any]]) -> tuple[RunRecord, ...]:
    """Return one run per row of kind ``"result"``."""
    return tuple(_record(study, row) for row in rows if row["kind"] == "result")


def _record(study: str, row: dict[str, Any]) -> RunRecord:
    metrics = [(metric, float(row[column])) for column, metric in _METRICS.items() if row.get(column) is not None]
    metrics += [
        ("certificate_valid", float(row["certificate_valid"])),
        ("bound_verified", float(row["bound_status"] == "verified")),
        ("proven_optimal", float(row["certified_status"] == "OPTIMAL")),
    ]
    return RunRecord(
        name=f"{row['instance']}/{row['method']}",
        tags=(
            ("study", study),
            ("method", str(row["method"])),
            ("instance", str(row["instance"])),
            ("status", str(row["status"])),
        ),
        params=flatten({key: row.get(key) for key in _PARAMS}),
        metrics=tuple(metrics),
        has_failed=row["broke"] or not row["available"],
    )
