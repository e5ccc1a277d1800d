"""What people see: tables, coloured layer bars, reasons, certificate."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.comparison import Comparison, MethodOutcome
from experiments.layer_map import LayerMap, LayerRow, colour
from experiments.left_out import summarise
from experiments.what_if import WhatIf
from slob_opt.planning.evaluate import format_gib
from slob_opt.planning.result import OPTIMALITY_TOLERANCE, Status
from slob_opt.problem.placement import Placement


def printer() -> Console:
    """Return the console of stdout; without a terminal it is 120 columns wide and has no colours."""
    console = Console(highlight=False, soft_wrap=False)
    return console if console.is_terminal else Console(highlight=False, width=120)


def notes() -> Console:
    """Return the console of stderr, for progress."""
    return Console(stderr=True, highlight=False)


def print_json(value: object) -> None:
    """Print JSON to stdout, two spaces deep."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def value_text(value: float | None, is_throughput: bool) -> str:
    """Return a natural value with its unit: ``184 tok/s`` or ``21.7 ms``."""
    if value is None:
        return "–"
    return f"{value:.5g} tok/s" if is_throughput else f"{value * 1e3:.5g} ms"


def percent(share: float | None) -> str:
    """Return a share as per cent; what counts as optimal is 0, what merely rounds to it is not."""
    if share is None:
        return "–"
    return "<0.01 %" if OPTIMALITY_TOLERANCE < share < 5e-5 else f"{100 * share:.2f} %"


def seconds_text(value: float) -> str:
    """Return a duration as ``3.1 ms`` or ``12.4 s``."""
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"


def layer_bar(row: LayerRow, num_layers: int, width: int) -> Text:
    """Return a bar as wide as `width`, a block per stage in its class's colour, with as much of the name as fits."""
    text = Text(no_wrap=True)
    for block in row.blocks:
        start, stop = (round(edge / num_layers * width) for edge in (block.first, block.end))
        room = stop - start
        if room <= 0:
            continue
        label = block.device if len(block.device) + 1 < room else block.device[-(room - 1) :] if room > 1 else ""
        style = (
            f"bold black on {colour(block.class_index)}"
            if block.is_bottleneck
            else f"black on {colour(block.class_index)}"
        )
        text.append(("▏" + label).ljust(room)[:room], style=style)
    return text


def legend(*maps: LayerMap) -> Text:
    """Return the classes that work or are left out in some of the maps, with their colours.

    Beside a single map's classes stands how many of their devices work. Tensor-parallel classes whose cards all work in
    other groups are not listed.
    """
    shown = {c for layers in maps for c in (*layers.used_classes, *(left for _, left in layers.left_out))}
    text = Text()
    for c in sorted(shown):
        used, count = maps[0].class_counts[c]
        text.append("  ", style=f"on {colour(c)}")
        text.append(f" {maps[0].class_names[c]} {f'{used}/' if len(maps) == 1 else '× '}{count}   ")
    return text


def print_layer_map(console: Console, layers: LayerMap, indent: int = 2) -> None:
    """Print one bar per pipeline."""
    width = max(40, console.width - indent - 30)
    for index, row in enumerate(layers.rows):
        line = Text(" " * indent)
        line.append_text(layer_bar(row, layers.num_layers, width))
        line.append(f" p{index} K={row.num_micro_batches} b={row.batch_size} {row.rate:.4g} tok/s")
        console.print(line, no_wrap=True, overflow="crop")


def print_left_out(console: Console, outcome: MethodOutcome, indent: int = 2) -> None:
    """Print devices without work, by class and reason."""
    for name, devices, reason in summarise(outcome.left_out):
        few = ", ".join(devices[:4]) + (f" and {len(devices) - 4} more" if len(devices) > 4 else "")
        console.print(Text(f"{' ' * indent}left out {len(devices)} × {name} ({few}): {reason}"))


def stage_table(layers: LayerMap) -> Table:
    """Return the stages of a plan as a table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, right in (("pipe", True), ("device", False), ("class", False), ("layers", True), ("count", True)):
        table.add_column(title, justify="right" if right else "left")
    for title in ("stage time", "memory", "of", "use"):
        table.add_column(title, justify="right")
    for index, row in enumerate(layers.rows):
        for block in row.blocks:
            table.add_row(
                str(index),
                Text(block.device, style="bold" if block.is_bottleneck else ""),
                Text(layers.class_names[block.class_index], style=colour(block.class_index)),
                f"{block.first}–{block.end - 1}",
                str(block.end - block.first),
                f"{block.time_s * 1e3:.3f} ms" + ("*" if block.is_bottleneck else " "),
                format_gib(block.memory_bytes),
                format_gib(block.capacity_bytes),
                f"{block.memory_use:.0%}",
            )
    return table


def comparison_table(comparison: Comparison) -> Table:
    """Return one row per method."""
    throughput = comparison.setup.instance.is_throughput
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("method", no_wrap=True)
    for title in ("value", "bound", "bound is", "gap", "best gap", "time", "head-room", "cards"):
        table.add_column(title, justify="left" if title == "bound is" else "right", no_wrap=True)
    table.add_column("status")
    best = comparison.best
    for outcome in comparison.outcomes:
        result, layers = outcome.result, outcome.layers
        has_rows = layers is not None and bool(layers.rows)
        table.add_row(
            Text(outcome.method, style="bold" if outcome is best else ""),
            value_text(comparison.natural(result.objective), throughput),
            value_text(comparison.natural(result.bound), throughput),
            outcome.certificate.bound_status,
            percent(result.gap),
            percent(comparison.gap_to_best(outcome)),
            seconds_text(result.elapsed_s),
            format_gib(layers.min_headroom_bytes) if layers is not None and has_rows else "–",
            _used_cards(result.placement),
            result.status.value + _status_note(outcome),
        )
    return table


def _status_note(outcome: MethodOutcome) -> str:
    """What the status alone does not say: a plan that breaks something, or a search that had too little memory."""
    if outcome.result.placement is not None and not outcome.has_plan:
        return " (plan is not valid)"
    is_open = outcome.result.status in (Status.FEASIBLE, Status.UNKNOWN)
    return " (memory limit)" if is_open and outcome.met_memory_limit else ""


def _used_cards(placement: Placement | None) -> str:
    return "–" if placement is None else str(len(placement.used_cards))


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print all methods of one instance: figures, layer maps, reasons."""
    instance = comparison.setup.instance
    console.rule(Text(instance.name, style="bold"), align="left")
    console.print(comparison_table(comparison))
    kind = "verified by its witness" if comparison.has_verified_bound else "claimed by its method only"
    if comparison.best_bound is not None:
        shown = value_text(comparison.natural(comparison.best_bound), instance.is_throughput)
        console.print(f"best bound {shown}, {kind}; best gap is the gap to it")
    maps = [outcome.layers for outcome in comparison.outcomes if outcome.layers is not None]
    if maps:
        console.print(legend(*maps))
    first_with: dict[Placement, str] = {}
    for outcome in comparison.outcomes:
        console.print(Text.assemble((outcome.method, "bold"), _note(outcome)))
        placement = outcome.result.placement
        if placement is not None and first_with.setdefault(placement, outcome.method) != outcome.method:
            console.print(f"  same plan as {first_with[placement]}")
            continue
        if outcome.layers is not None:
            print_layer_map(console, outcome.layers)
        for violation in outcome.evaluation.violations if outcome.evaluation is not None else ():
            console.print(Text(f"  not valid: {violation}", style="red"))
        print_left_out(console, outcome)
    for name, reason in comparison.skipped:
        console.print(Text.assemble((name, "bold"), f" not started: {reason}"))
    for sentence in comparison.disagreements:
        console.print(Text(f"disagreement: {sentence}", style="bold red"))


def _note(outcome: MethodOutcome) -> str:
    """What the method has to say; which devices it left out is told with the reasons."""
    message = outcome.result.message
    return "" if not message or (outcome.left_out and message.startswith("unused: ")) else f": {message}"


def what_if_table(rows: Sequence[WhatIf], is_throughput: bool) -> Table:
    """Return the sensitivity table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("with")
    for title in ("same plan", "gain", "new plan", "gain"):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(
            row.resource,
            value_text(row.same_plan, is_throughput),
            "–" if row.same_plan_gain is None else f"{row.same_plan_gain:+.2%}",
            value_text(row.new_plan, is_throughput),
            "–" if row.new_plan_gain is None else f"{row.new_plan_gain:+.2%}",
        )
    return table
