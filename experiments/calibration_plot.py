"""Picture of a calibration: measured against fitted time, and how far off the fit is by computed tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.plots import LINE_COLOURS, blank_figure, styled
from runtime.calibration_fit import ProfileFit, StageMeasurement

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("decode", "prefill", "mixed")
"""Kinds of iterations, each with its colour."""


def kind_of(item: StageMeasurement) -> str:
    """Return which of :data:`KINDS` a measurement is."""
    if item.shape.decode_contexts and item.shape.prefill_chunks:
        return "mixed"
    return "decode" if item.shape.decode_contexts else "prefill"


def plot_points(fit: ProfileFit) -> dict[str, list[tuple[float, float, int]]]:
    """Return by kind (measured ms, fitted ms, computed tokens) of each measurement."""
    found: dict[str, list[tuple[float, float, int]]] = {kind: [] for kind in KINDS}
    for item, told in zip(fit.measurements, fit.fitted_s, strict=True):
        found[kind_of(item)].append((item.seconds * 1e3, told * 1e3, item.shape.computed_tokens))
    return {kind: points for kind, points in found.items() if points}


def draw_calibration(fit: ProfileFit) -> Figure:
    """Return the figure; needs no display."""
    points = plot_points(fit)
    with styled():
        figure = blank_figure(9.0, 4.0)
        against, off = figure.subplots(1, 2)
        times = [value for rows in points.values() for row in rows for value in row[:2] if value > 0]
        against.plot([min(times), max(times)], [min(times), max(times)], color="#999999", linewidth=1)
        for kind, rows in points.items():
            colour = LINE_COLOURS[KINDS.index(kind)]
            measured, fitted, tokens = zip(*rows, strict=True)
            against.scatter(measured, fitted, s=14, color=colour, label=kind)
            off.scatter(tokens, [100 * (f / m - 1) for m, f in zip(measured, fitted, strict=True)], s=14, color=colour)
        against.set(xscale="log", yscale="log", xlabel="measured, ms", ylabel="fitted, ms")
        against.legend(frameon=False)
        off.axhline(0, color="#999999", linewidth=1)
        off.set(xscale="log", xlabel="computed tokens", ylabel="fitted - measured, %")
        profile = fit.profile
        figure.suptitle(
            f"{profile.model.name}, {profile.model.dtype}, {profile.hardware.name}: median error"
            f" {profile.fit.median_error:.1%}, held out {profile.fit.held_out_median_error:.1%}"
        )
    return figure
