"""Pictures: the layer map and the gap over time, as PNG and SVG. What is drawn comes as data from elsewhere."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.gap_curves import GapCurve
from experiments.layer_map import PALETTE, LayerMap, colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINE_COLOURS = tuple("#8A7F00" if shade == "#F0E442" else shade for shade in PALETTE)
"""Colours of curves: as for blocks, but for the yellow, which a thin line on white loses."""

_STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "font.family": "DejaVu Sans",
    "svg.hashsalt": "slob",
    "svg.fonttype": "none",
}


def styled() -> AbstractContextManager[None]:
    """Return the context in which all pictures are drawn."""
    import matplotlib

    return matplotlib.rc_context(_STYLE)


def blank_figure(width: float, height: float) -> Figure:
    """Return an empty figure, sides in inches; needs no display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def svg_text(figure: Figure) -> str:
    """Return a figure as SVG without background and dates."""
    buffer = io.StringIO()
    with styled():
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def save(figure: Figure, folder: Path, name: str) -> tuple[Path, Path]:
    """Write ``<name>.png`` (150 dpi) and ``<name>.svg`` without dates, so that equal data give equal files."""
    folder.mkdir(parents=True, exist_ok=True)
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        figure.savefig(png, dpi=150, metadata={"Software": None})
        figure.savefig(svg, metadata={"Date": None})
    return png, svg


def _text_colour(background: str) -> str:
    """Black or white, whichever reads better on a colour (relative luminance, WCAG 2.1)."""
    red, green, blue = (int(background[i : i + 2], 16) / 255 for i in (1, 3, 5))
    luminance = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    return "black" if luminance > 0.25 else "white"


def draw_layer_map(maps: Sequence[tuple[str, LayerMap]], title: str) -> Figure:
    """Return a figure with one panel per (method, layer map); needs no display.

    Rows are pipelines, blocks are stages as wide as their layers, coloured by device class, filled from below by the
    share of memory in use; the slowest stage of a pipeline has a thick frame. Left-out devices are listed below.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    with matplotlib.rc_context(_STYLE):
        heights = [max(1, len(layers.rows)) + 1.25 for _, layers in maps]
        figure = Figure(figsize=(12, 0.62 * sum(heights) + 1.3), layout="constrained")
        panels = figure.subplots(len(maps), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
        for axes, (method, layers) in zip(panels, maps, strict=True):
            _draw_panel(axes, method, layers)
        if maps:
            first = maps[0][1]
            shown = sorted({c for _, layers in maps for c in (*layers.used_classes, *(c for _, c in layers.left_out))})
            handles = [Patch(facecolor=colour(c), label=first.class_names[c]) for c in shown]
            handles.append(Patch(facecolor="white", edgecolor="black", linewidth=2, label="slowest stage"))
            figure.legend(handles=handles, loc="outside lower center", ncols=min(6, len(handles)), frameon=False)
        figure.suptitle(title, fontsize=11)
    return figure


def _draw_panel(axes: Axes, method: str, layers: LayerMap) -> None:
    """One method: its rows, its title, its left-out devices."""
    from matplotlib.patches import Rectangle

    for row_index, row in enumerate(layers.rows):
        bottom = len(layers.rows) - 1 - row_index + 0.1
        for block in row.blocks:
            width = block.end - block.first
            fill = colour(block.class_index)
            axes.add_patch(Rectangle((block.first, bottom), width, 0.8, facecolor=fill, alpha=0.45, linewidth=0))
            used = min(1.0, block.memory_use)
            axes.add_patch(Rectangle((block.first, bottom), width, 0.8 * used, facecolor=fill, linewidth=0))
        for block in row.blocks:
            over = block.memory_use > 1
            axes.add_patch(
                Rectangle(
                    (block.first, bottom),
                    block.end - block.first,
                    0.8,
                    facecolor="none",
                    edgecolor="#C00000" if over else "black" if block.is_bottleneck else "white",
                    linewidth=2.0 if over or block.is_bottleneck else 1.0,
                    zorder=3 if over or block.is_bottleneck else 2,
                )
            )
            _label_block(axes, block.device, block.first, block.end, block.memory_use, bottom, layers.num_layers)
        label = f"K={row.num_micro_batches}, b={row.batch_size}\n{row.rate:.4g} tok/s, {row.interval_s * 1e3:.4g} ms"
        axes.text(layers.num_layers * 1.008, bottom + 0.4, label, va="center", ha="left", fontsize=7.5)
    axes.set_xlim(0, layers.num_layers)
    axes.set_ylim(0, max(1, len(layers.rows)))
    axes.set_yticks(
        [len(layers.rows) - 0.5 - i for i in range(len(layers.rows))],
        [f"pipeline {i}" for i in range(len(layers.rows))],
    )
    axes.tick_params(length=0)
    step = next(s for s in (1, 2, 4, 8, 10, 16, 20, 40) if s == 40 or layers.num_layers / s <= 12)
    axes.set_xticks(range(0, layers.num_layers + 1, step))
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.set_title(method, loc="left", fontsize=9.5, fontweight="bold")
    axes.set_xlabel(f"layer        {left_out_text(layers)}", loc="left", fontsize=8)


def _label_block(
    axes: Axes, device: str, first: int, end: int, memory_use: float, bottom: float, num_layers: int
) -> None:
    """Write device, layers and memory into a block, as much of it as its width allows (about 150 characters a row)."""
    room = (end - first) / num_layers * 150
    lines = (
        [f"{device}", f"{first}–{end - 1} · {memory_use:.0%}"]
        if end - first > 1
        else [device, f"{first} · {memory_use:.0%}"]
    )
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7.0, "zorder": 4, "clip_on": True}
    middle = (first + end) / 2
    halo = {"boxstyle": "round,pad=0.15", "facecolor": "white", "alpha": 0.78, "linewidth": 0}
    if room >= max(map(len, lines)) + 1:
        axes.text(middle, bottom + 0.4, "\n".join(lines), bbox=halo, **style)
    elif room >= 2.5:
        short = device if len(device) <= 14 else device[:13] + "…"
        style["fontsize"] = 5.6
        axes.text(middle, bottom + 0.4, short, rotation=90, bbox=halo, **style)


def left_out_text(layers: LayerMap, max_names: int = 8) -> str:
    """Return the line that lists left-out devices, by class and by name as far as there is room."""
    if not layers.left_out:
        return "all devices work"
    counts: dict[int, int] = {}
    for _, c in layers.left_out:
        counts[c] = counts.get(c, 0) + 1
    classes = ", ".join(f"{n} × {layers.class_names[c]}" for c, n in counts.items())
    names = ", ".join(name for name, _ in layers.left_out[:max_names])
    more = f" and {len(layers.left_out) - max_names} more" if len(layers.left_out) > max_names else ""
    return f"left out: {classes} ({names}{more})"


def draw_gap_curves(curves: Sequence[GapCurve], title: str, unit: str) -> Figure:
    """Return a figure of incumbents (full lines) and bounds (dashed) against logarithmic time.

    Parameters
    ----------
    curves
        One a method.
    title, unit
        Heading, and unit of the vertical axis (``"tokens/s"``, ``"s"``).
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(9, 5), layout="constrained")
        axes = figure.subplots()
        axes.set_xscale("log")
        end = max((at for curve in curves for at, _ in (*curve.incumbent, *curve.bound)), default=1.0) * 1.3
        for index, curve in enumerate(curves):
            shade = LINE_COLOURS[index % len(LINE_COLOURS)]
            marker = "osD^vP*X"[index % 8]
            for points, style in ((curve.incumbent, "-"), (curve.bound, "--")):
                if not points:
                    continue
                xs, ys = [at for at, _ in points], [value for _, value in points]
                axes.step([*xs, end], [*ys, ys[-1]], style, where="post", color=shade, linewidth=1.4, alpha=0.45)
                axes.step(xs, ys, style, where="post", color=shade, linewidth=1.8)
                axes.plot(
                    xs[-1], ys[-1], marker, color=shade, markersize=5, fillstyle="full" if style == "-" else "none"
                )
        values = sorted(value for curve in curves for _, value in curve.incumbent)
        bounds = [curve.bound[-1][1] for curve in curves if curve.bound]
        _limit_height(axes, values, bounds)
        axes.set_xlim(right=end)
        axes.set_xlabel("seconds since the method started")
        axes.set_ylabel(unit)
        axes.grid(visible=True, which="major", alpha=0.25)
        handles = [
            Line2D([], [], color=LINE_COLOURS[i % len(LINE_COLOURS)], marker="osD^vP*X"[i % 8], label=curve.method)
            for i, curve in enumerate(curves)
        ]
        handles += [
            Line2D([], [], color="black", label="plan (incumbent)"),
            Line2D([], [], color="black", linestyle="--", label="bound"),
        ]
        figure.legend(handles=handles, loc="outside right upper", frameon=False)
        axes.set_title(title, loc="left", fontsize=11)
    return figure


def _limit_height(axes: Axes, incumbents: Sequence[float], final_bounds: Sequence[float]) -> None:
    """Keep plans and final bounds in view; early bounds that are far off may leave the picture."""
    if not incumbents:
        return
    far = [b for b in final_bounds if b <= 3 * incumbents[-1]]
    low, high = min([*incumbents, *far]), max([*incumbents, *far])
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    axes.set_ylim(low - margin, high + margin)
