"""What `slob workload` says about a workload: plain JSON, whose keys are documented in docs/cli.md and stay."""

from __future__ import annotations

from slob_opt.problem.files.traces import TraceReport
from slob_opt.problem.workload import Workload
from slob_opt.problem.workload_stats import QUANTILES, WorkloadStats


def stats_json(stats: WorkloadStats) -> dict[str, object]:
    """Return the figures of a workload."""
    return {
        "num_requests": stats.num_requests,
        "span_s": stats.span_s,
        "rate_per_s": stats.rate,
        "gap_cv": stats.gap_cv,
        "dispersion_60": stats.dispersion_60,
        "dispersion_600": stats.dispersion_600,
        "peak_rate_per_s": stats.peak_rate,
        "prompt_tokens": _lengths(stats.prompt_mean, stats.prompt_quantiles, stats.prompt_max),
        "output_tokens": _lengths(stats.output_mean, stats.output_quantiles, stats.output_max),
        "num_sessions": stats.num_sessions,
        "turns_mean": stats.turns_mean,
        "turns_max": stats.turns_max,
    }


def _lengths(mean: float, quantiles: tuple[float, ...], most: int) -> dict[str, float]:
    return {"mean": mean} | {f"p{q}": value for q, value in zip(QUANTILES, quantiles, strict=True)} | {"max": most}


def report_json(report: TraceReport) -> dict[str, object]:
    """Return what became of a trace's rows."""
    return {
        "file": report.file,
        "trace_format": report.kind,
        "read": report.read,
        "kept": report.kept,
        "outside": report.outside,
        "skipped": {fault.value: rows for fault, rows in report.skipped},
        "clipped": report.clipped,
        "has_prefix_ids": report.has_prefix_ids,
        "assumed_prefix_hit_rate": report.assumed_prefix_hit_rate,
    }


def workload_json(
    workload: Workload, stats: WorkloadStats, report: TraceReport | None, config: dict[str, object], file: str | None
) -> dict[str, object]:
    """Return all that is said about a workload.

    Parameters
    ----------
    workload, stats
        The workload and its figures.
    report
        What became of the trace's rows; ``None`` for a sample.
    config
        Effective configuration.
    file
        Where the workload was written; ``None`` where it wasn't.
    """
    return {
        "name": workload.name,
        "fingerprint": workload.fingerprint,
        "stats": stats_json(stats),
        "report": None if report is None else report_json(report),
        "file": file,
        "config": config,
    }


def report_sentence(report: TraceReport) -> str:
    """Return what became of the rows in one sentence."""
    parts = [f"{report.kind}: read {report.read} rows, kept {report.kept}"]
    if report.skipped:
        parts.append("skipped " + ", ".join(f"{rows} {fault.value}" for fault, rows in report.skipped))
    if report.clipped:
        parts.append(f"clipped the prompts of {report.clipped}")
    if report.outside:
        parts.append(f"left {report.outside} outside the window")
    return "; ".join(parts)
