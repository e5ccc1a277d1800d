"""`slob calibrate`: measure a device with a model, and make a cluster file of it."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from experiments.calibration_output import (
    EmulatedCard,
    calibration_json,
    emulated_cards,
    emulated_cluster,
    relative_name,
    short_time,
    time_rows,
    workers_text,
    worst_rows,
)
from experiments.cli import options as opt
from experiments.cli import screen
from experiments.cli.environment import model_cache
from experiments.cli.number_options import MAX_SEED, MAX_WORKERS, whole
from experiments.plan_output import make_folder
from slob_opt.errors import InputError
from slob_opt.problem.files import dump_cluster, find_model, load_profile
from slob_opt.problem.files.documents import write_whole
from slob_opt.problem.files.profile_file import write_profile
from slob_opt.problem.measured import MeasuredProfile
from slob_opt.units import parse_bytes

if TYPE_CHECKING:
    from runtime.calibration_fit import ProfileFit
    from runtime.calibration_links import LinkFit

_MEASURE, _CLUSTER, _OUTPUT = "Measurement", "Cluster file", "Output"


class Dtype(StrEnum):
    """Number formats of the runtime."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class LinkKind(StrEnum):
    """Ways between the workers of one machine."""

    LOCAL = "local"
    TCP = "tcp"


def _option(*names: str, panel: str, text: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


def calibrate(  # noqa: PLR0917 - Typer makes an option of each parameter
    model: Annotated[
        str | None, _option("--model", "-m", panel=_MEASURE, text="Folder in Hugging Face format, or a fetched model.")
    ] = None,
    device: Annotated[str, _option("--device", panel=_MEASURE, text="As torch names it: cpu, cuda:0.")] = "cpu",
    dtype: Annotated[Dtype, _option("--dtype", panel=_MEASURE, text="Number format of weights, KV, activations.")] = (
        Dtype.FLOAT32
    ),
    quick: Annotated[
        bool, _option("--quick", panel=_MEASURE, text="Fewer and smaller steps: seconds with a small model.")
    ] = False,
    rounds: Annotated[
        int | None,
        _option(
            "--rounds",
            panel=_MEASURE,
            text="Rounds to take medians of; default 5, quick 3.",
            parser=whole(1, 1000),
            metavar="<int>",
        ),
    ] = None,
    threads: Annotated[
        int,
        _option(
            "--threads",
            panel=_MEASURE,
            text="Threads of a worker on the CPU; emulation needs 1.",
            parser=whole(1, MAX_WORKERS),
            metavar="<int>",
        ),
    ] = 1,
    max_layers: Annotated[
        int | None,
        _option(
            "--max-layers",
            panel=_MEASURE,
            text="Layers to hold at most, where the model doesn't fit the device.",
            parser=whole(1, 100_000),
            metavar="<int>",
        ),
    ] = None,
    seed: Annotated[
        int,
        _option("--seed", panel=_MEASURE, text="Of orders and tokens.", parser=whole(0, MAX_SEED), metavar="<int>"),
    ] = 0,
    profile: Annotated[
        Path | None, _option("--profile", panel=_MEASURE, text="Take this profile instead of measuring.")
    ] = None,
    cluster_out: Annotated[
        Path | None,
        _option("--cluster-out", panel=_CLUSTER, text="Write a cluster file of emulated cards box/0, box/1, ..."),
    ] = None,
    slowdown: Annotated[
        str, _option("--slowdown", panel=_CLUSTER, text="How many times slower each card is, as 1,3.")
    ] = "1",
    memory: Annotated[
        str | None, _option("--memory", panel=_CLUSTER, text="Memory of each card, as 300MiB,600MiB.")
    ] = None,
    workers_out: Annotated[
        Path | None, _option("--workers-out", panel=_CLUSTER, text="Write the workers file that makes these cards.")
    ] = None,
    link: Annotated[
        LinkKind, _option("--link", panel=_CLUSTER, text="What the cards exchange data through; measured.")
    ] = LinkKind.LOCAL,
    out: Annotated[Path | None, _option("--out", "-o", panel=_OUTPUT, text="Write the profile, as profile.json.")] = (
        None
    ),
    plot: Annotated[
        Path | None, _option("--plot", panel=_OUTPUT, text="Draw measured against fitted times, as fit.svg.")
    ] = None,
    format: opt.Format = opt.OutputFormat.TABLE,
    show_config: opt.ShowConfig = False,
) -> None:
    """Measure the devices of this machine for the cost model.

    A profile tells a stage's time with one model, as its worker takes it; plans and simulations of a cluster file that
    names it are then in measured times. Measure while nothing else runs. With --cluster-out one device becomes a
    cluster of unequal cards, each slower and smaller than it; slob serve makes them real with --workers.

    Example: slob calibrate --model smollm2-135m --out profile.json

    Another: slob calibrate --profile profile.json --cluster-out box.yaml --slowdown 1,3 --memory 600MiB,300MiB
    """
    cards = _cards(cluster_out, workers_out, slowdown, memory, device)
    if (model is None) == (profile is None):
        raise InputError("give --model to measure, or --profile to take an earlier measurement")
    if profile is not None and (out or plot):
        raise InputError(f"--{'out' if out else 'plot'} belongs to a measurement, not to --profile")
    config: dict[str, object] = {
        "command": "calibrate",
        "model": model,
        "profile": None if profile is None else str(profile),
        "device": device,
        "dtype": dtype.value,
        "quick": quick,
        "rounds": rounds,
        "threads": threads,
        "max_layers": max_layers,
        "seed": seed,
        "cards": [asdict(card) for card in cards],
        "link": link.value,
        "output": {
            "out": None if out is None else str(out),
            "cluster_out": None if cluster_out is None else str(cluster_out),
            "workers_out": None if workers_out is None else str(workers_out),
            "plot": None if plot is None else str(plot),
            "format": format,
        },
    }
    if show_config:
        screen.print_json(config)
        return
    for path in (out, cluster_out, workers_out, plot):
        if path is not None:
            make_folder(path.parent)
    fit = None
    if profile is not None:
        found = load_profile(profile)
    else:
        assert model is not None
        fit = _measured(model, device, dtype.value, quick, rounds, threads, max_layers, seed)
        found = fit.profile
    files: dict[str, str | None] = {"profile": None, "cluster": None, "workers": None, "plot": None}
    kept = profile
    if out is not None:
        write_profile(found, out)
        files["profile"], kept = str(out), out
    links = None
    if cluster_out is not None:
        links = _measured_link(link, found)
        _write_cluster(cluster_out, found, cards, links, kept)
        files["cluster"] = str(cluster_out)
    if workers_out is not None:
        write_whole(workers_out, workers_text(cards, device))
        files["workers"] = str(workers_out)
    if plot is not None and fit is not None:
        files["plot"] = _drawn(fit, plot)
    if format is opt.OutputFormat.JSON:
        screen.print_json(calibration_json(found, fit, links, config, files))
        return
    _show(found, fit, links, files)


def _cards(
    cluster_out: Path | None, workers_out: Path | None, slowdown: str, memory: str | None, device: str
) -> list[EmulatedCard]:
    """Return the cards that the options describe; none where no file of them is asked for."""
    if cluster_out is None and workers_out is None:
        if memory is not None or slowdown != "1":
            raise InputError("--slowdown and --memory describe the cards of --cluster-out; name that file")
        return []
    if memory is None:
        raise InputError("--cluster-out needs --memory, one size a card, as 300MiB,600MiB")
    try:
        slow = [float(part) for part in slowdown.split(",")]
    except ValueError as error:
        raise InputError(f"found {slowdown!r}, expected numbers as 1,3", key="--slowdown") from error
    try:
        sizes = [parse_bytes(part) for part in memory.split(",")]
    except InputError as error:
        raise error.located(key="--memory") from error
    try:
        return emulated_cards(slow, sizes, len(os.sched_getaffinity(0)) if device == "cpu" else None)
    except InputError as error:
        raise error.located(key="--slowdown") from error


def _measured(
    model: str,
    device: str,
    dtype: str,
    quick: bool,
    rounds: int | None,
    threads: int,
    max_layers: int | None,
    seed: int,
) -> ProfileFit:
    """Measure, with progress on stderr."""
    from runtime.calibration import CalibrationOptions, CalibrationProgress
    from runtime.calibration import calibrate as measure
    from runtime.model_store import resolve_model

    folder = resolve_model(model, model_cache())
    base = CalibrationOptions.quick() if quick else CalibrationOptions()
    options = replace(
        base, rounds=base.rounds if rounds is None else rounds, threads=threads, max_layers=max_layers, seed=seed
    )
    with screen.notes().status(f"loading {model}") as status:

        def tell(progress: CalibrationProgress) -> None:
            left = "" if progress.left_s is None else f", {progress.left_s:.0f} s left"
            many = f": {progress.done}/{progress.total}" if progress.total else ""
            status.update(f"{progress.what}{many}{left}")

        return measure(folder, find_model(str(folder)), device, dtype, options, tell)


def _measured_link(kind: LinkKind, profile: MeasuredProfile) -> LinkFit:
    from runtime.calibration_transfers import measure_link

    with screen.notes().status(f"measuring transfers over {kind.value}"):
        return measure_link(kind.value, profile.model.hidden_size, profile.model.dtype)


def _write_cluster(
    path: Path, profile: MeasuredProfile, cards: list[EmulatedCard], link: LinkFit, kept: Path | None
) -> None:
    cluster = emulated_cluster(path.stem, profile, cards, link.link)
    known = {} if kept is None else {profile: relative_name(kept, path.parent)}
    write_whole(path, dump_cluster(cluster, known))


def _drawn(fit: ProfileFit, path: Path) -> str:
    from experiments.calibration_plot import draw_calibration
    from experiments.plots import save

    svg = save(draw_calibration(fit), path.parent, path.stem)[1]
    return str(svg)


def _show(profile: MeasuredProfile, fit: ProfileFit | None, link: LinkFit | None, files: dict[str, str | None]) -> None:
    console = screen.printer()
    model, hardware, quality = profile.model, profile.hardware, profile.fit
    threads = f", {hardware.threads} thread{'s' if hardware.threads > 1 else ''}" if hardware.kind == "cpu" else ""
    console.print(
        Text.assemble((model.name, "bold"), f" in {model.dtype} on {hardware.name}{threads}, torch {hardware.torch}")
    )
    console.print(
        f"{quality.num_measurements} measurements ({profile.clock} time; wall is {profile.wall_ratio:.3g} times that);"
        f" fit misses {quality.median_error:.1%} in the middle, {quality.p95_error:.1%} at p95;"
        f" held out {quality.held_out_median_error:.1%} and {quality.held_out_p95_error:.1%}"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("time of")
    table.add_column("value", justify="right")
    table.add_column("±", justify="right")
    for row in time_rows(profile):
        table.add_row(*row)
    console.print(table)
    if fit is not None:
        worst = Table(box=None, pad_edge=False, header_style="bold")
        for title, justify in (("layers", "left"), ("missed most", "left"), ("measured", "right"), ("fit", "right")):
            worst.add_column(title, justify="right" if justify == "right" else "left")
        for layers, shape, measured, error in worst_rows(fit):
            worst.add_row(layers, shape, measured, f"{error:+.1%}")
        console.print(worst)
    if link is not None:
        console.print(
            f"link: {short_time(link.link.latency_s)} and {link.link.bytes_per_s / 1e9:.3g} GB/s,"
            f" misses {link.median_error:.0%} in the middle, {link.worst_error:.0%} at most"
        )
    for what, name in files.items():
        if name is not None:
            print(f"{what}: {name}")
