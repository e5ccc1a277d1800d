"""A simulated run as files: trace, timeline for Perfetto, Gantt chart."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiments.gantt import busy_window, draw_gantt, gantt_data
from experiments.plan_output import digest, make_folder
from experiments.plots import save
from experiments.serving_run import PolicyChoice, RunOptions
from experiments.serving_setup import ServingSystem
from slob_opt.metrics.outcomes import Outcome
from slob_opt.metrics.request_columns import Status
from slob_opt.metrics.trace_chrome import chrome_text
from slob_opt.metrics.trace_header import TraceHeader, TracePipeline, TraceStage
from slob_opt.metrics.trace_reader import Trace, read_trace
from slob_opt.metrics.trace_writer import TraceWriter
from slob_opt.problem.files.documents import write_pieces
from slob_opt.problem.workload import NS_PER_S, Workload
from slob_opt.simulation.delivery import Delivery
from slob_opt.simulation.simulator import Simulator


@dataclass(frozen=True, slots=True)
class TraceFiles:
    """Files of a run.

    Attributes
    ----------
    trace
        JSON lines, see docs/trace.md.
    chrome
        For chrome://tracing and ui.perfetto.dev.
    plots
        Gantt chart of the busiest stretch, PNG and SVG; empty when nothing was computed.
    """

    trace: Path
    chrome: Path
    plots: tuple[Path, ...]


def trace_header(
    workload: Workload, system: ServingSystem, choice: PolicyChoice, *, is_padded: bool, seed: int, source: str
) -> TraceHeader:
    """Return what a trace of a run is about.

    Parameters
    ----------
    workload, system, choice
        What is served, by what, and how.
    is_padded, seed
        Of the engine.
    source
        Who serves: ``simulator`` or ``runtime``.
    """
    devices = system.cluster.devices
    pipelines = tuple(
        TracePipeline(
            limits.num_lanes,
            tuple(
                TraceStage(tuple(devices[card].name for card in stage.cards), stage.first, stage.end)
                for stage in pipeline.stages
            ),
        )
        for pipeline, limits in zip(system.placement.pipelines, system.limits, strict=True)
    )
    return TraceHeader(
        source,
        workload.name,
        system.cluster.name,
        system.model.name,
        choice.label,
        None if len(pipelines) == 1 else choice.dispatcher,
        "padded" if is_padded else "ragged",
        seed,
        pipelines,
        (
            ("workload", workload.fingerprint),
            ("cluster", digest(system.cluster)),
            ("model", digest(system.model)),
            ("placement", digest(system.placement)),
            ("policy", digest(choice.effective())),
        ),
    )


def record_run(
    path: Path, workload: Workload, system: ServingSystem, choice: PolicyChoice, options: RunOptions | None = None
) -> Trace:
    """Simulate a workload, write its trace, and return it.

    An observed simulation steps through each iteration, so it takes several times as long as one that only measures;
    requests fare the same.

    Parameters
    ----------
    path
        File to write.
    workload, system, choice
        What is served, by what, and how.
    options
        ``None`` takes the defaults; specifications of satisfaction mean nothing here.

    Raises
    ------
    InputError
        When policy or dispatcher are unknown, or the file can't be written.
    PolicyError
        When a policy decides something that isn't allowed.
    """
    options = options or RunOptions()
    engine, count, end_ns = options.engine, len(system.limits), options.end_ns(workload)
    header = trace_header(
        workload, system, choice, is_padded=engine.is_padded, seed=options.seed, source="simulator"
    )  # fmt: skip
    make_folder(path.parent)
    with TraceWriter(path, header) as trace:

        def enter(delivery: Delivery) -> None:
            status = Status(int(delivery.end))
            outcome = Outcome(delivery.request, status, delivery.pipeline, delivery.started_ns, delivery.token_ns)
            trace.outcome(workload, outcome)

        Simulator(
            workload,
            system.limits,
            system.clocks,
            choice.policies(count),
            choice.make_dispatcher(count, options.seed),
            sink=enter,
            options=engine,
            horizon_ns=end_ns,
            observer=trace.iteration,
        ).run()
        trace.finish(end_ns)
    return read_trace(path)


def write_trace_files(
    folder: Path,
    workload: Workload,
    system: ServingSystem,
    choice: PolicyChoice,
    options: RunOptions | None = None,
    *,
    name: str = "trace",
) -> TraceFiles:
    """Simulate a workload and write ``NAME.trace.jsonl``, ``NAME.chrome.json``, ``NAME-gantt.png`` and ``.svg``.

    Parameters
    ----------
    folder
        Made where it's missing.
    workload, system, choice, options
        As for :func:`record_run`.
    name
        First part of the files' names; with ``example`` the report of a study finds the trace.
    """
    path = folder / f"{name}.trace.jsonl"
    trace = record_run(path, workload, system, choice, options)
    chrome, plots = write_views(folder, trace, name)
    return TraceFiles(path, chrome, plots)


def write_views(
    folder: Path, trace: Trace, name: str, window: tuple[float, float] | None = None
) -> tuple[Path, tuple[Path, ...]]:
    """Write ``NAME.chrome.json`` and the Gantt chart ``NAME-gantt.png`` and ``.svg``; return their paths.

    Parameters
    ----------
    folder
        Made where it's missing.
    trace
        What is shown.
    name
        First part of the files' names.
    window
        Seconds from the start of the workload, to before the second one. ``None`` shows the whole run in the timeline
        and its busiest stretch in the chart. Without iterations there is no chart.
    """
    make_folder(folder)
    chrome = folder / f"{name}.chrome.json"
    first_ns, end_ns = (0, None) if window is None else (round(window[0] * NS_PER_S), round(window[1] * NS_PER_S))
    write_pieces(chrome, chrome_text(trace, first_ns=first_ns, end_ns=end_ns))
    if not trace.iterations:
        return chrome, ()
    header = trace.header
    title = f"{header.policy} on {header.cluster}, {header.model}, {header.workload}"
    first_s, end_s = busy_window(trace) if window is None else window
    return chrome, save(draw_gantt(gantt_data(trace, first_s, end_s), title), folder, f"{name}-gantt")
