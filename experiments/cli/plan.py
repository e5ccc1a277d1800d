"""`slob plan`: the best placement for one cluster and one model."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from experiments.cli import options as opt
from experiments.cli import screen
from experiments.cli.export_screen import export_json, print_export
from experiments.cli.problem import problem_options
from experiments.comparison import Comparison, MethodOutcome, compare
from experiments.engine_export import export_plan
from experiments.no_plan import why_no_plan
from experiments.plan_output import write_plan
from experiments.problem_setup import ProblemSetup, set_up
from experiments.registry import PLANNERS, make_planner, parse_methods, unsuitable
from experiments.report import certificate_json, comparison_json, outcome_json
from experiments.what_if import WhatIf, link_sentence, what_if
from slob_opt.planning.result import SolveLimits, Status

DEFAULT_METHODS = ("slob", "parametric")
"""The heuristic, and the exact search that proves or improves its plan, or at least bounds it."""


def plan(  # noqa: PLR0917 - Typer makes an option of each parameter
    cluster: opt.Cluster,
    model: opt.Model,
    traffic: opt.Traffic = None,
    prompt_tokens: opt.PromptTokens = None,
    output_tokens: opt.OutputTokens = None,
    context_tokens: opt.ContextTokens = None,
    objective: opt.ObjectiveOption = opt.ObjectiveName.THROUGHPUT,
    in_flight: opt.InFlight = None,
    max_micro_batches: opt.MaxMicroBatches = None,
    max_interval: opt.MaxInterval = None,
    max_in_flight: opt.MaxInFlight = None,
    weight_bits: opt.WeightBits = None,
    kv_bits: opt.KvBits = None,
    kv_mode: opt.KvModeOption = None,
    memory_utilization: opt.MemoryUtilization = None,
    batch_grid: opt.BatchGrid = None,
    tp: opt.Tp = None,
    methods: opt.Methods = None,
    time_limit: opt.TimeLimit = 60.0,
    memory_limit: opt.MemoryLimit = None,
    seed: opt.Seed = 0,
    workers: opt.Workers = 1,
    format: opt.Format = opt.OutputFormat.TABLE,
    out: opt.OutFile = None,
    what_if: opt.WhatIf = False,
    export: opt.Export = None,
    show_config: opt.ShowConfig = False,
) -> None:
    """Find the best placement for one cluster and one model.

    Runs slob, then parametric for a proof or at least a bound, and shows the plan, why devices are left out, and its
    certificate. --export vllm adds how to start vLLM with it. Exit code 1 when there is no plan; then the smallest
    conflict is told.

    Example: slob plan --cluster helix-single24 --model llama-2-70b --objective latency --out plan.json
    """
    given = dict(locals())
    setup = set_up(problem_options(given))
    limits = opt.solve_limits(time_limit, memory_limit, seed, workers)

    def methods_of(problem: ProblemSetup) -> tuple[str, ...] | None:
        return parse_methods(methods) if methods is not None else _default_methods(problem)

    chosen = methods_of(setup)
    output = opt.OutputOptions(format, out, None)
    config: dict[str, object] = {
        "command": "plan",
        "problem": setup.effective(),
        "methods": list(chosen) if chosen is not None else "all",
        "limits": opt.limits_config(limits),
        "output": {**output.effective(), "what_if": what_if, "export": None if export is None else export.value},
    }
    if show_config:
        screen.print_json(config)
        return
    comparison = _search(setup, chosen, limits)
    best = comparison.best
    if best is None:
        _tell_no_plan(comparison, config, why_no_plan(comparison, limits), format)
        raise typer.Exit(1)
    sensitivity = _sensitivity(setup, best, limits) if what_if else ()
    exported = None
    if export is not None:
        exported = export_plan(export.value, setup, best, lambda changed: _search(changed, methods_of(changed), limits))
    if out is not None:
        write_plan(out, comparison, best)
    if format is opt.OutputFormat.JSON:
        extra = {} if exported is None else {"export": export_json(exported)}
        screen.print_json(_json(comparison, best, config, sensitivity, out) | extra)
        return
    _show(screen.printer(), comparison, best, sensitivity)
    if exported is not None:
        print_export(screen.printer(), exported, comparison.natural(best.result.objective))
    if out is not None:
        print(f"plan written to {out}")


def _default_methods(setup: ProblemSetup) -> tuple[str, ...]:
    return tuple(
        name for name in DEFAULT_METHODS if name == "slob" or unsuitable(PLANNERS[name], setup.instance) is None
    )


def _search(setup: ProblemSetup, methods: tuple[str, ...] | None, limits: SolveLimits) -> Comparison:
    """Run the methods with a line of progress on stderr."""
    with screen.notes().status(f"planning {setup.instance.name}") as status:
        return compare(
            setup, methods, limits, progress=lambda method: status.update(f"{setup.instance.name}: {method}")
        )


def _sensitivity(setup: ProblemSetup, best: MethodOutcome, limits: SolveLimits) -> tuple[WhatIf, ...]:
    if best.result.placement is None:
        return ()
    return what_if(setup, best.result.placement, make_planner("slob"), limits)


def _tell_no_plan(comparison: Comparison, config: dict[str, object], sentence: str, format: opt.OutputFormat) -> None:
    """Say that there is no plan, or that none was found, and why."""
    status = Status.INFEASIBLE if comparison.is_infeasible else Status.UNKNOWN
    if format is opt.OutputFormat.JSON:
        screen.print_json({"status": status.value, "reason": sentence, "config": config, **comparison_json(comparison)})
        return
    start = "infeasible" if status is Status.INFEASIBLE else "no plan found"
    print(f"{start}: {sentence}")


def _json(
    comparison: Comparison,
    best: MethodOutcome,
    config: dict[str, object],
    sensitivity: tuple[WhatIf, ...],
    out: Path | None,
) -> dict[str, object]:
    """The answer with stable keys."""
    whole = comparison_json(comparison)
    return {
        "status": best.result.status.value,
        "unit": whole["unit"],
        "best_bound": whole["best_bound"],
        "best_bound_is_verified": whole["best_bound_is_verified"],
        "plan": outcome_json(comparison, best),
        "links": link_sentence(best.evaluation) if best.evaluation is not None else None,
        "what_if": [
            {
                "resource": row.resource,
                "same_plan": row.same_plan,
                "same_plan_gain": row.same_plan_gain,
                "new_plan": row.new_plan,
                "new_plan_gain": row.new_plan_gain,
            }
            for row in sensitivity
        ],
        "methods": whole["methods"],
        "file": None if out is None else str(out),
        "config": config,
    }


def _show(console: Console, comparison: Comparison, best: MethodOutcome, sensitivity: tuple[WhatIf, ...]) -> None:
    """The plan for people."""
    instance = comparison.setup.instance
    throughput = instance.is_throughput
    value = screen.value_text(comparison.natural(best.result.objective), throughput)
    console.print(Text.assemble((f"{instance.name}: ", ""), (value, "bold"), f" by {best.method}"))
    if best.layers is not None and best.evaluation is not None:
        console.print(screen.legend(best.layers))
        screen.print_layer_map(console, best.layers)
        console.print(screen.stage_table(best.layers))
        console.print("* slowest stage of its pipeline")
        console.print(link_sentence(best.evaluation))
    screen.print_left_out(console, best, indent=0)
    console.print(Text(certificate_sentence(comparison, best)))
    for sentence in comparison.disagreements:
        console.print(Text(f"disagreement: {sentence}", style="bold red"))
    if sensitivity:
        console.print(screen.what_if_table(sensitivity, throughput))


def certificate_sentence(comparison: Comparison, best: MethodOutcome) -> str:
    """Return what the re-check says of a plan, in one sentence or two."""
    gap = comparison.gap_to_best(best)
    found = certificate_json(best)
    start = (
        "certificate: memory and times recomputed exactly, plan valid"
        if found["is_valid"]
        else "certificate: not valid"
    )
    if comparison.best_bound is None or gap is None:
        return f"{start}; no bound is known"
    bound = screen.value_text(comparison.natural(comparison.best_bound), comparison.setup.instance.is_throughput)
    kind = "verified" if comparison.has_verified_bound else "claimed"
    if best.result.status is Status.OPTIMAL:
        return f"{start}; optimal (bound {bound}, {kind})"
    return f"{start}; no plan is more than {screen.percent(gap)} better (bound {bound}, {kind})"
