"""A plan for another engine, as JSON and on the screen."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from experiments.cli import screen
from experiments.engine_export import PlanExport
from experiments.report import outcome_json


def export_json(export: PlanExport) -> dict[str, object]:
    """Return an export with stable keys."""
    substitute, comparison = export.substitute, export.comparison
    return {
        "engine": export.engine,
        "is_exportable": not export.obstacles,
        "obstacles": list(export.obstacles),
        "substitute": None if substitute is None or comparison is None else outcome_json(comparison, substitute),
        "substitute_tp_degree": export.degree,
        "engines": [
            {
                "environment": dict(engine.environment),
                "arguments": list(engine.arguments),
                "command": engine.command,
                "ranks": [{"num_layers": count, "cards": list(cards)} for count, cards in engine.stages],
                "notes": list(engine.notes),
            }
            for engine in export.engines
        ],
    }


def print_export(console: Console, export: PlanExport, value: float | None) -> None:
    """Print what to start; long lines are not wrapped, so that they can be copied.

    Parameters
    ----------
    console, export
        Where to, and what.
    value
        Worth of the plan that was asked for, natural scale; a substitute is held against it.
    """
    for obstacle in export.obstacles:
        console.print(Text(f"not for {export.engine}: {obstacle}"), soft_wrap=True)
    substitute, comparison = export.substitute, export.comparison
    if export.obstacles and (substitute is None or comparison is None):
        console.print("no plan with one tensor-parallel degree for all stages was found either")
        return
    if substitute is not None and comparison is not None:
        found = comparison.natural(substitute.result.objective)
        shown = screen.value_text(found, comparison.setup.instance.is_throughput)
        change = f" ({found / value - 1:+.1%})" if found is not None and value else ""
        gap = screen.percent(comparison.gap_to_best(substitute))
        console.print(
            Text.assemble(
                f"best plan with TP {export.degree} everywhere: ", (shown, "bold"), f"{change}, gap to its bound {gap}"
            )
        )
        if substitute.layers is not None:
            screen.print_layer_map(console, substitute.layers)
    many = len(export.engines) > 1
    console.print(f"start one {export.engine} per pipeline, MODEL being its checkpoint:" if many else "start:")
    for index, engine in enumerate(export.engines):
        cards = "; ".join(f"{count} layers on {' + '.join(names)}" for count, names in engine.stages)
        console.print(Text(f"  # p{index}: {cards}"), soft_wrap=True)
        for note in engine.notes:
            console.print(Text(f"  # {note}"), soft_wrap=True)
        console.print(Text(f"  {engine.command}"), soft_wrap=True)
