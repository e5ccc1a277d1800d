"""`slob validate`: re-check a plan file."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from experiments.cli import options as opt
from experiments.cli import screen
from experiments.cli.problem import problem_options
from experiments.comparison import Comparison, MethodOutcome, outcome_of
from experiments.plan_output import fingerprints_of, setup_from_plan, with_objective_of
from experiments.problem_setup import ProblemOptions, ProblemSetup, set_up
from experiments.report import outcome_json
from slob_opt.errors import InputError
from slob_opt.planning.certify import certify
from slob_opt.planning.plan_record import claim_of
from slob_opt.planning.result import Status
from slob_opt.problem.files.plan_file import PlanFile, read_plan

_CLUSTER = Annotated[
    str | None, typer.Option("--cluster", "-c", help="Cluster, for a plan that does not carry its own.")
]
_MODEL = Annotated[str | None, typer.Option("--model", "-m", help="Model, for a plan that does not carry its own.")]
_OBJECTIVE = Annotated[opt.ObjectiveName | None, typer.Option("--objective", help="Objective of a hand-made plan.")]
_OBJECTIVE_OPTIONS = ("objective", "in_flight", "max_micro_batches", "max_interval", "max_in_flight")

GAP_SLACK = 1e-9
"""Difference between a gap in a file and the one computed again that is rounding."""


def validate(  # noqa: PLR0917 - Typer makes an option of each parameter
    plan: Annotated[Path, typer.Argument(help="A plan.json, written by slob or by hand.")],
    cluster: _CLUSTER = None,
    model: _MODEL = None,
    traffic: opt.Traffic = None,
    prompt_tokens: opt.PromptTokens = None,
    output_tokens: opt.OutputTokens = None,
    context_tokens: opt.ContextTokens = None,
    objective: _OBJECTIVE = None,
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
    format: opt.Format = opt.OutputFormat.TABLE,
    show_config: opt.ShowConfig = False,
) -> None:
    """Check a plan file again: memory, times, bound.

    Memory is recomputed in whole bytes and times as exact fractions, by other code than the planners'. A plan written
    by slob carries its cluster, model and traffic; a hand-made one needs its pipelines, with --cluster and --model.
    Exit code 1 when the plan is not valid.

    Example: slob validate my-plan.json --cluster helix-single24 --model llama-2-70b
    """
    given = dict(locals())
    file = str(plan)
    content = read_plan(plan)
    setup = _setup(given, content, file)
    if show_config:
        screen.print_json(
            {"command": "validate", "plan": file, "problem": setup.effective(), "output": {"format": format}}
        )
        return
    comparison, outcome = check(setup, content, file)
    is_valid = outcome.certificate.is_valid
    if format is opt.OutputFormat.JSON:
        screen.print_json(
            {"is_valid": is_valid, "plan": outcome_json(comparison, outcome), "problem": setup.effective()}
        )
    else:
        _show(screen.printer(), comparison, outcome)
    if not is_valid:
        raise typer.Exit(1)


def _setup(given: dict[str, object], plan: PlanFile, file: str) -> ProblemSetup:
    """The problem: what the options say when --cluster is given, else what the plan carries."""
    if given["cluster"] is not None or given["model"] is not None:
        if given["cluster"] is None or given["model"] is None:
            raise InputError("--cluster and --model belong together")
        said = problem_options(given, objective=_objective_name(given, plan), **_objective_parameters(given, plan))
        setup = set_up(said)
        is_own = all(given[name] is None for name in _OBJECTIVE_OPTIONS)
        return with_objective_of(plan, setup, file) if is_own else setup
    said = problem_options(given, cluster=file, model=file, objective="throughput")
    without_effect = [
        item.name.replace("_", "-")
        for item in fields(ProblemOptions)
        if item.name not in {"cluster", "model", "objective"} and getattr(said, item.name) is not None
    ]
    if given["objective"] is not None:
        without_effect.insert(0, "objective")
    if without_effect:
        raise InputError(
            f"--{without_effect[0]} needs --cluster and --model; the plan is checked against what it carries"
        )
    return setup_from_plan(plan, file)


def _objective_name(given: dict[str, object], plan: PlanFile) -> object:
    """What the option says, else the plan, else: one pipeline with b = 1 is an interval plan, others throughput."""
    if given["objective"] is not None:
        return given["objective"]
    if plan.objective is not None:
        return plan.objective["kind"]
    is_single = len(plan.pipelines) == 1 and plan.pipelines[0].batch_size == 1
    return "interval" if is_single else "throughput"


def _objective_parameters(given: dict[str, object], plan: PlanFile) -> dict[str, object]:
    """K of an interval plan is the plan's own, unless an option says otherwise."""
    name = _objective_name(given, plan)
    if name == "interval" and given["in_flight"] is None and plan.pipelines:
        return {"in_flight": plan.pipelines[0].num_micro_batches}
    return {}


def check(setup: ProblemSetup, plan: PlanFile, file: str) -> tuple[Comparison, MethodOutcome]:
    """Return the re-check of a plan, as a comparison of one method.

    What the file was made for is told as a violation, not refused: a plan may be tried on another problem.
    """
    claim = claim_of(replace(plan, fingerprints={}, objective=None), setup.instance, file=file)
    certificate = certify(claim, setup.instance, rebuild=setup.rebuild)
    changed = (*_changed_inputs(setup, plan), *_wrong_gap(plan, certificate.gap))
    if changed:
        violations = (*certificate.violations, *changed)
        certificate = replace(certificate, violations=violations, is_valid=False)
    objective = certificate.objective if claim.objective is None else claim.objective
    settled = replace(claim, status=certificate.status, objective=objective)
    outcome = outcome_of(claim.planner, settled, certificate, setup)
    is_verified = certificate.bound_status == "verified"
    bound = claim.bound if certificate.bound_status in ("verified", "claimed") else None
    return Comparison(setup, (outcome,), (), bound, is_verified, ()), outcome


def _wrong_gap(plan: PlanFile, gap: float | None) -> tuple[str, ...]:
    """The gap that a file claims, where it isn't the one between its worth and its bound, in words."""
    if plan.gap is None or gap is None or abs(plan.gap - gap) <= GAP_SLACK:
        return ()
    return (f"the plan claims a gap of {plan.gap:.6g}, it is {gap:.6g}",)


def _changed_inputs(setup: ProblemSetup, plan: PlanFile) -> tuple[str, ...]:
    """Fingerprints in the file that don't belong to the problem, in words."""
    own = {"cost_table": setup.table.fingerprint, "instance": setup.instance.fingerprint}
    found = {**fingerprints_of(setup), **own}
    return tuple(
        f"the plan was made for another {name.replace('_', ' ')} ({said[:12]}, here {found[name][:12]})"
        for name, said in plan.fingerprints.items()
        if name in found and found[name] != said
    )


def _show(console: Console, comparison: Comparison, outcome: MethodOutcome) -> None:
    """The finding for people."""
    certificate, instance = outcome.certificate, comparison.setup.instance
    mark = Text("valid", "bold green") if certificate.is_valid else Text("not valid", "bold red")
    value = screen.value_text(comparison.natural(certificate.objective), instance.is_throughput)
    console.print(Text.assemble(f"{instance.name}: ", mark, f", {value}"))
    if outcome.layers is not None:
        console.print(screen.legend(outcome.layers))
        screen.print_layer_map(console, outcome.layers)
        console.print(screen.stage_table(outcome.layers))
    for violation in certificate.violations:
        console.print(Text(f"violation: {violation}", style="red"))
    gap = screen.percent(certificate.gap)
    console.print(Text(f"bound: {certificate.bound_status}, gap {gap}, status {certificate.status.value}"))
    for reason in certificate.reasons:
        console.print(Text(f"  {reason}"))
    if certificate.status is Status.OPTIMAL:
        console.print("the plan is optimal")
