"""Outcomes as plain JSON with stable keys, and as records for tracking."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.comparison import Comparison, MethodOutcome
from experiments.gap_curves import natural
from experiments.layer_map import LayerMap, LayerRow
from experiments.left_out import LeftOut
from experiments.provenance import Provenance
from experiments.run_record import RowTable, RunRecord, Series, flatten
from slob_opt.cost.memory import TokenCapacity, token_capacity
from slob_opt.planning.evaluate import Evaluation, PipelineReport
from slob_opt.planning.result import SolveResult, Status

SCHEMA_VERSION = 1


def unit_of(is_throughput: bool) -> str:
    """Return the unit of natural values."""
    return "output tokens/s" if is_throughput else "s"


def kv_capacity(row: LayerRow, report: PipelineReport) -> TokenCapacity | None:
    """Return how many sequences in flight each stage of a pipeline has room for; ``None`` when one holds no KV."""
    kv = [dict(stage.memory).get("kv", 0) for stage in report.stages]
    units = [held // (row.num_micro_batches * row.batch_size) for held in kv]  # whole: every sequence takes as much
    if min(units) < 1:
        return None
    return token_capacity([stage.headroom_bytes + held for stage, held in zip(report.stages, kv, strict=True)], units)


def pipelines_json(layers: LayerMap, evaluation: Evaluation, context_tokens: int) -> list[dict[str, object]]:
    """Return pipelines and stages in numbers (seconds, bytes, tokens/s).

    Parameters
    ----------
    layers, evaluation
        A placement and what it is worth.
    context_tokens
        KV tokens that one sequence in flight counts for.
    """
    pairs = list(zip(layers.rows, evaluation.pipelines, strict=True))
    rooms = [kv_capacity(row, report) for row, report in pairs]
    return [
        {
            "num_micro_batches": row.num_micro_batches,
            "batch_size": row.batch_size,
            "interval_s": row.interval_s,
            "tokens_per_s": row.rate,
            "hops_s": report.hops_s,
            "return_s": report.return_s,
            "kv_tokens": None if room is None else room.total * context_tokens,
            "kv_spread": None if room is None or not room.total else room.spread,
            "stages": [
                {
                    "device": block.device,
                    "class": layers.class_names[block.class_index],
                    "first": block.first,
                    "end": block.end,
                    "time_s": block.time_s,
                    "memory_bytes": block.memory_bytes,
                    "capacity_bytes": block.capacity_bytes,
                    "memory": dict(stage.memory),
                    "kv_tokens": None if room is None else room.per_stage[index] * context_tokens,
                    "is_bottleneck": block.is_bottleneck,
                }
                for index, (block, stage) in enumerate(zip(row.blocks, report.stages, strict=True))
            ],
        }
        for (row, report), room in zip(pairs, rooms, strict=True)
    ]


def left_out_json(left_out: tuple[LeftOut, ...]) -> list[dict[str, str]]:
    """Return devices without work and why."""
    return [{"device": item.device, "class": item.class_name, "reason": item.reason} for item in left_out]


def outcome_json(comparison: Comparison, outcome: MethodOutcome) -> dict[str, object]:
    """Return one method's outcome; keys are documented in docs/cli.md and stay."""
    result, layers, evaluation = outcome.result, outcome.layers, outcome.evaluation
    best_gap, context_tokens = comparison.gap_to_best(outcome), comparison.setup.traffic.kv_tokens
    return {
        "method": outcome.method,
        "status": result.status.value,
        "objective": comparison.natural(result.objective),
        "bound": comparison.natural(result.bound),
        "bound_status": outcome.certificate.bound_status,
        "gap_pct": None if result.gap is None else 100 * result.gap,
        "best_gap_pct": None if best_gap is None else 100 * best_gap,
        "elapsed_s": result.elapsed_s,
        "headroom_bytes": None if layers is None or not layers.rows else layers.min_headroom_bytes,
        "message": result.message,
        "met_memory_limit": outcome.met_memory_limit,
        "certificate": certificate_json(outcome),
        "pipelines": [] if layers is None or evaluation is None else pipelines_json(layers, evaluation, context_tokens),
        "left_out": left_out_json(outcome.left_out),
        "details": dict(result.details),
        "limits": {
            "time_s": result.limits.time_s,
            "memory_bytes": result.limits.memory_bytes,
            "seed": result.limits.seed,
            "workers": result.limits.workers,
        },
    }


def certificate_json(outcome: MethodOutcome) -> dict[str, object]:
    """Return what the re-check found."""
    certificate = outcome.certificate
    return {
        "is_valid": certificate.is_valid,
        "bound_status": certificate.bound_status,
        "violations": list(certificate.violations),
        "reasons": list(certificate.reasons),
    }


def comparison_json(comparison: Comparison) -> dict[str, object]:
    """Return one instance with all its methods."""
    best = comparison.best
    return {
        "instance": comparison.setup.instance.name,
        "unit": unit_of(comparison.setup.instance.is_throughput),
        "problem": comparison.setup.effective(),
        "best_method": None if best is None else best.method,
        "best_bound": comparison.natural(comparison.best_bound),
        "best_bound_is_verified": comparison.has_verified_bound,
        "methods": [outcome_json(comparison, outcome) for outcome in comparison.outcomes],
        "skipped": [{"method": name, "reason": reason} for name, reason in comparison.skipped],
        "disagreements": list(comparison.disagreements),
    }


def history_series(result: SolveResult, is_throughput: bool) -> tuple[Series, ...]:
    """Return incumbent and bound over time in natural scale."""
    incumbent = tuple(
        (p.elapsed_s, natural(p.objective, is_throughput)) for p in result.history if p.objective is not None
    )
    bound = tuple((p.elapsed_s, natural(p.bound, is_throughput)) for p in result.history if p.bound is not None)
    found = (Series("history.incumbent", incumbent), Series("history.bound", bound))
    return tuple(series for series in found if series.points)


def stage_table(outcome: MethodOutcome) -> RowTable | None:
    """Return one row per stage; per-device figures belong here, not into metrics."""
    if outcome.layers is None:
        return None
    rows = tuple(
        (
            index,
            b.device,
            outcome.layers.class_names[b.class_index],
            b.first,
            b.end,
            b.time_s,
            b.memory_bytes,
            b.capacity_bytes,
        )
        for index, row in enumerate(outcome.layers.rows)
        for b in row.blocks
    )
    columns = ("pipeline", "device", "class", "first", "end", "time_s", "memory_bytes", "capacity_bytes")
    return RowTable("stages.csv", columns, rows)


def outcome_record(comparison: Comparison, outcome: MethodOutcome, files: tuple[tuple[str, str], ...]) -> RunRecord:
    """Return the child run of one (instance, method, seed).

    Parameters
    ----------
    comparison, outcome
        What happened.
    files
        (artifact folder, local path), as the plan's file.
    """
    result = outcome.result
    throughput = comparison.setup.instance.is_throughput
    best_gap = comparison.gap_to_best(outcome)
    figures: dict[str, float | None] = {
        "objective": comparison.natural(result.objective),
        "bound": comparison.natural(result.bound),
        "gap_pct": None if result.gap is None else 100 * result.gap,
        "best_gap_pct": None if best_gap is None else 100 * best_gap,
        "solve_s": result.elapsed_s,
        "certificate_valid": float(outcome.certificate.is_valid),
        "bound_verified": float(outcome.certificate.bound_status == "verified"),
        "proven_optimal": float(result.status is Status.OPTIMAL),
    }
    if outcome.layers is not None and outcome.layers.rows:
        figures |= {
            "headroom_bytes": float(outcome.layers.min_headroom_bytes),
            "num_pipelines": float(len(outcome.layers.rows)),
            "num_devices_used": float(sum(len(row.blocks) for row in outcome.layers.rows)),
            "num_devices_left_out": float(len(outcome.layers.left_out)),
            "interval_s": max(row.interval_s for row in outcome.layers.rows),
        }
    history = RowTable(
        "history.csv",
        ("elapsed_s", "objective", "bound"),
        tuple((p.elapsed_s, comparison.natural(p.objective), comparison.natural(p.bound)) for p in result.history),
    )
    tables = tuple(table for table in (stage_table(outcome), history if history.rows else None) if table is not None)
    tags = {
        "method": outcome.method,
        "instance": comparison.setup.instance.name,
        "status": result.status.value,
        "bound_status": outcome.certificate.bound_status,
        "reproducible": "yes" if is_reproducible(result) else "no",
    }
    details = {f"details.{key}": str(value) for key, value in result.details}
    params = {
        **dict(flatten({"problem": comparison.setup.effective()})),
        "method": outcome.method,
        "seed": str(result.limits.seed),
        "workers": str(result.limits.workers),
        "time_s": str(result.limits.time_s),
        "memory_bytes": str(result.limits.memory_bytes),
        "message": result.message or "none",
        **details,
    }
    return RunRecord(
        name=f"{comparison.setup.instance.name}/{outcome.method}",
        tags=tuple(tags.items()),
        params=tuple(params.items()),
        metrics=tuple((name, value) for name, value in figures.items() if value is not None),
        series=history_series(result, throughput),
        tables=tables,
        texts=(("traceback.txt", outcome.trace),) if outcome.trace else (),
        files=files,
        has_failed=outcome.trace is not None,
    )


def is_reproducible(result: SolveResult) -> bool:
    """Whether the same call gives the same plan: one worker, and no time limit that cut the search short."""
    limit = result.limits.time_s
    was_cut = result.status is not Status.OPTIMAL and limit is not None and result.elapsed_s >= 0.95 * limit
    return result.limits.workers == 1 and not was_cut


def report_json(
    command: str, config: Mapping[str, object], provenance: Provenance, comparisons: tuple[Comparison, ...]
) -> dict[str, object]:
    """Return the whole report of a command."""
    return {
        "schema_version": SCHEMA_VERSION,
        "command": command,
        "config": dict(config),
        "provenance": provenance.as_json(),
        "instances": [comparison_json(comparison) for comparison in comparisons],
    }
