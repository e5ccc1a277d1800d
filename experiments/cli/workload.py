"""`slob workload`: look at traces, convert them, sample presets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from experiments.cli import options as opt
from experiments.cli import screen
from experiments.cli import workload_options as wopt
from experiments.workload_output import report_sentence, workload_json
from experiments.workload_source import PresetOptions
from slob_opt.errors import InputError
from slob_opt.problem.files.traces import TraceReport
from slob_opt.problem.files.workload_file import workload_suffix, write_workload
from slob_opt.problem.presets import load_preset, preset_ids
from slob_opt.problem.workload import Workload
from slob_opt.problem.workload_stats import WorkloadStats, workload_stats

workload = typer.Typer(
    help="Describe, convert and sample workloads: traces and presets.",
    epilog="Example: slob workload describe example",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
"""The group of commands."""


@workload.command()
def describe(  # noqa: PLR0917 - Typer makes an option of each parameter
    trace: wopt.Trace,
    trace_format: wopt.TraceFormat = None,
    skip: wopt.Skip = None,
    max_model_tokens: wopt.MaxModelTokens = None,
    model: wopt.Model = None,
    clip: wopt.Clip = False,
    max_requests: wopt.MaxRequests = None,
    since: wopt.Since = None,
    until: wopt.Until = None,
    arrivals: wopt.Arrivals = None,
    rate: wopt.Rate = None,
    cv: wopt.Cv = None,
    on: wopt.On = None,
    off: wopt.Off = None,
    thin: wopt.Thin = None,
    stretch: wopt.Stretch = None,
    thin_to: wopt.ThinTo = None,
    stretch_to: wopt.StretchTo = None,
    seed: wopt.Seed = 0,
    format: opt.Format = opt.OutputFormat.TABLE,
    show_config: opt.ShowConfig = False,
) -> None:
    """Show rate, burstiness and lengths of a trace.

    Reads the published formats of Azure, BurstGPT, Mooncake, ServeGen and Vidur (lengths only: name --arrivals), and
    slob's own. A bad row is told with its line, or skipped and counted with --skip.

    Example: slob workload describe example --thin-to 0.01 --format json
    """
    said = wopt.trace_options(dict(locals()))
    config: dict[str, object] = {"command": "workload describe", **said.effective(), "output": {"format": format}}
    if show_config:
        screen.print_json(config)
        return
    with screen.notes().status(f"reading {trace}") as status:
        found, report = said.load(lambda rows: status.update(f"reading {trace}: {rows:,} rows"))
    _show(found, workload_stats(found), report, config, None, format)


@workload.command()
def convert(  # noqa: PLR0917 - Typer makes an option of each parameter
    trace: wopt.Trace,
    out: wopt.OutTrace,
    trace_format: wopt.TraceFormat = None,
    skip: wopt.Skip = None,
    max_model_tokens: wopt.MaxModelTokens = None,
    model: wopt.Model = None,
    clip: wopt.Clip = False,
    max_requests: wopt.MaxRequests = None,
    since: wopt.Since = None,
    until: wopt.Until = None,
    arrivals: wopt.Arrivals = None,
    rate: wopt.Rate = None,
    cv: wopt.Cv = None,
    on: wopt.On = None,
    off: wopt.Off = None,
    thin: wopt.Thin = None,
    stretch: wopt.Stretch = None,
    thin_to: wopt.ThinTo = None,
    stretch_to: wopt.StretchTo = None,
    seed: wopt.Seed = 0,
    format: opt.Format = opt.OutputFormat.TABLE,
    show_config: opt.ShowConfig = False,
) -> None:
    """Write a trace in slob's own format, changed as the options say.

    The file holds every number exactly; its name ends with .csv or .jsonl, and .gz packs it.

    Example: slob workload convert example --stretch 2 --out quieter.csv
    """
    said = wopt.trace_options(dict(locals()))
    config: dict[str, object] = {
        "command": "workload convert",
        **said.effective(),
        "output": {"format": format, "out": str(out)},
    }
    workload_suffix(out)
    if show_config:
        screen.print_json(config)
        return
    with screen.notes().status(f"reading {trace}") as status:
        found, report = said.load(lambda rows: status.update(f"reading {trace}: {rows:,} rows"))
        write_workload(out, found, progress=lambda rows: status.update(f"writing {out}: {rows:,} rows"))
    _show(found, workload_stats(found), report, config, out, format)


@workload.command()
def sample(  # noqa: PLR0917 - Typer makes an option of each parameter
    preset: Annotated[str, typer.Argument(help=f"Which preset: {', '.join(preset_ids())}.")],
    days: wopt.Days = None,
    duration: wopt.Duration = None,
    rate: wopt.PresetRate = None,
    even: wopt.Even = False,
    variant: wopt.Variant = None,
    seed: wopt.SampleSeed = 0,
    out: wopt.OutSample = None,
    format: opt.Format = opt.OutputFormat.TABLE,
    show_config: opt.ShowConfig = False,
) -> None:
    """Sample a preset: a synthetic workload of a small site.

    Without --out only its figures are shown. A day of a preset is its working day; nights are left out.

    Example: slob workload sample office_chat --days 5 --out week.csv
    """
    load_preset(preset).prompt_of(variant)
    if days is not None and duration is not None:
        raise InputError("--days and --duration say the same thing; give one of them")
    duration_s = None if duration is None else wopt.seconds(duration, "--duration")
    said = PresetOptions(preset, days, duration_s, rate, even, variant, seed)
    config: dict[str, object] = {
        "command": "workload sample",
        **said.effective(),
        "output": {"format": format, "out": None if out is None else str(out)},
    }
    if out is not None:
        workload_suffix(out)
    if show_config:
        screen.print_json(config)
        return
    with screen.notes().status(f"sampling {preset}") as status:
        found = said.load()
        if out is not None:
            write_workload(out, found, progress=lambda rows: status.update(f"writing {out}: {rows:,} rows"))
    _show(found, workload_stats(found, span_s=said.span_s), None, config, out, format)


def _show(
    found: Workload,
    stats: WorkloadStats,
    report: TraceReport | None,
    config: dict[str, object],
    out: Path | None,
    format: opt.OutputFormat,
) -> None:
    """Print all that is known about a workload."""
    if format is opt.OutputFormat.JSON:
        screen.print_json(workload_json(found, stats, report, config, None if out is None else str(out)))
        return
    console = screen.printer()
    span, rate = wopt.span_text(stats.span_s), wopt.figure(stats.rate)
    console.print(Text.assemble((found.name, "bold"), f": {stats.num_requests} requests in {span}, {rate} req/s"))
    console.print(
        f"gaps: variation {wopt.figure(stats.gap_cv)} (1 is Poisson); dispersion {wopt.figure(stats.dispersion_60)} in"
        f" 60 s, {wopt.figure(stats.dispersion_600)} in 600 s; busiest hours {wopt.figure(stats.peak_rate)} req/s (p99)"
    )
    console.print(_lengths_table(stats))
    if stats.num_sessions is not None:
        console.print(
            f"{stats.num_sessions} conversations, {wopt.figure(stats.turns_mean)} turns on average,"
            f" {stats.turns_max} at most"
        )
    if report is not None:
        console.print(Text(report_sentence(report)))
    if out is not None:
        print(f"file: {out}")


def _lengths_table(stats: WorkloadStats) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("tokens")
    for title in ("mean", "p5", "p50", "p95", "p99", "max"):
        table.add_column(title, justify="right")
    for name, mean, quantiles, most in (
        ("prompt", stats.prompt_mean, stats.prompt_quantiles, stats.prompt_max),
        ("output", stats.output_mean, stats.output_quantiles, stats.output_max),
    ):
        table.add_row(name, *(f"{value:.0f}" for value in (mean, *quantiles, most)))
    return table
