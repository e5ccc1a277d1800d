"""What people see of a simulation: the system, a row a policy, and why requests were rejected."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from experiments.cli.workload_options import figure
from experiments.serving_records import Simulated
from experiments.serving_setup import ServingSystem


def print_system(console: Console, system: ServingSystem) -> None:
    """Print each pipeline in a line: stages with their layers, lanes, KV tokens."""
    devices = system.cluster.devices
    for index, (pipeline, limits) in enumerate(zip(system.placement.pipelines, system.limits, strict=True)):
        stages = " -> ".join(
            f"{'+'.join(devices[card].name for card in stage.cards)} {stage.num_layers}" for stage in pipeline.stages
        )
        tokens = limits.kv_blocks * limits.block_tokens
        console.print(
            Text(f"p{index} K={limits.num_lanes}, {tokens:,} KV tokens, at most {limits.max_rows} requests: {stages}")
        )


def policy_table(simulated: Sequence[Simulated]) -> Table:
    """Return a row a policy; times in seconds."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("policy")
    for title in (
        "mean S", "p10 S", "S/alone", "TTFT p50", "p99", "TPOT p50", "p99", "E2E p99", "tok/s", "goodput", "busy",
        "unfinished", "rejected",
    ):  # fmt: skip
        table.add_column(title, justify="right")
    best = max((item.point["mean_satisfaction"] for item in simulated), default=0.0)
    for item in simulated:
        p = item.point
        table.add_row(
            Text(item.run.choice.label, style="bold" if p["mean_satisfaction"] == best else ""),
            f"{p['mean_satisfaction']:.4f}",
            f"{p['p10_satisfaction']:.3f}",
            f"{p['relative_satisfaction']:.3f}",
            *(figure(p[name]) for name in ("ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s", "e2e_p99_s")),
            figure(p["output_tokens_per_s"]),
            figure(p["goodput"]),
            f"{100 * p['utilisation']:.0f}%",
            str(p["num_unfinished"]),
            str(p["num_rejected"]),
        )
    return table


def print_rejections(console: Console, simulated: Sequence[Simulated]) -> None:
    """Print why requests were rejected, once where all policies rejected them alike."""
    told: dict[tuple[str, int], list[str]] = {}
    for item in simulated:
        for reason, count in item.run.reasons:
            told.setdefault((reason, count), []).append(item.run.choice.label)
    for (reason, count), labels in told.items():
        who = "" if len(labels) == len(simulated) else f" ({', '.join(labels)})"
        console.print(Text(f"rejected {count}{who}, as the first of them: {reason}", style="yellow"))
