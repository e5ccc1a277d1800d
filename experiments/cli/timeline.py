"""`slob timeline`: a trace file as a timeline and a Gantt chart."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.workload_options import seconds
from experiments.serving_trace import write_views
from slob_opt.errors import InputError
from slob_opt.metrics.trace_reader import read_trace
from slob_opt.problem.workload import NS_PER_S


def timeline(
    trace_file: Annotated[Path, typer.Argument(help="Trace of a simulated or real run.", metavar="TRACE_FILE")],
    since: Annotated[str | None, typer.Option("--from", help="Leave out what comes before, as 600s or 10min.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="Leave out what comes from here on, as 601s.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the files; default: that of the trace.")
    ] = None,
) -> None:
    """Draw a trace file: timeline for Perfetto, Gantt chart of stages.

    Without --from and --until the timeline holds the whole run and the chart its busiest stretch.

    Example: slob timeline runs/one/trace.jsonl --from 60s --until 62s
    """
    trace = read_trace(trace_file)
    window = None
    if since is not None or until is not None:
        end_s = trace.end_ns / NS_PER_S
        first = 0.0 if since is None else seconds(since, "--from", allow_zero=True)
        last = end_s if until is None else seconds(until, "--until")
        if not first < min(last, end_s):
            raise InputError(f"nothing lies between --from and --until: {first:g} s and {last:g} s of {end_s:g} s")
        window = (first, last)
    folder = trace_file.parent if out is None else out
    name = trace_file.name.removesuffix(".jsonl").removesuffix(".trace")
    chrome, plots = write_views(folder, trace, name, window)
    print(f"timeline: {chrome}")
    print(f"gantt: {', '.join(map(str, plots)) or 'no chart, the trace has no iteration'}")
