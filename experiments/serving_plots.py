"""Pictures of serving studies: figures against load, and distributions of times. Data come from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from experiments.plots import LINE_COLOURS, blank_figure, styled
from experiments.serving_curves import QUANTILES, Curve, Distribution

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = "osD^vP*X"
_SIZE = (6.4, 4.2)


def policy_style(policy: str, policies: Sequence[str]) -> dict[str, Any]:
    """Return colour, marker and width of a policy's line: the same wherever the same policies are drawn.

    Parameters
    ----------
    policy
        Label.
    policies
        All labels of the study, in its order.
    """
    index = policies.index(policy)
    size = len(LINE_COLOURS)
    return {
        "color": LINE_COLOURS[index % size],
        "marker": _MARKERS[index % len(_MARKERS)],
        "linestyle": ("-", "--", ":")[index // size % 3],
        "linewidth": 2.4 if policy.startswith("slob") else 1.5,
    }


def draw_curves(
    curves: Sequence[Curve], policies: Sequence[str], title: str, unit: str, *, has_share_axis: bool = False
) -> Figure:
    """Return a figure of a quantity against offered concurrency, with 95 % confidence bands; needs no display.

    Parameters
    ----------
    curves
        One a policy.
    policies
        All labels of the study, which fix the colours.
    title, unit
        Heading, and what the vertical axis shows.
    has_share_axis
        Whether the axis runs from 0 to 1.
    """
    with styled():
        figure = blank_figure(*_SIZE)
        axes = figure.subplots()
        loads = sorted({point.load for curve in curves for point in curve.points})
        for curve in curves:
            style = policy_style(curve.policy, policies)
            xs = [point.load for point in curve.points]
            axes.plot(xs, [point.mean for point in curve.points], label=curve.policy, markersize=4, **style)
            banded = [point for point in curve.points if point.low is not None and point.high is not None]
            if len(banded) > 1:
                axes.fill_between(
                    [point.load for point in banded],
                    [point.low or 0.0 for point in banded],
                    [point.high or 0.0 for point in banded],
                    color=style["color"], alpha=0.18, linewidth=0,
                )  # fmt: skip
        if loads and loads[0] > 0 and loads[-1] / loads[0] >= 8:
            _logarithmic(axes, loads)
        if has_share_axis:
            axes.set_ylim(-0.02, 1.02)
        else:
            axes.set_ylim(bottom=0)
        axes.set_xlabel("offered concurrency λ·E[S]")
        axes.set_ylabel(unit)
        _finish(figure, axes, title, len(curves))
    return figure


def draw_distributions(
    distributions: Sequence[Distribution], policies: Sequence[str], title: str, label: str
) -> Figure:
    """Return a figure of cumulative distributions on a logarithmic axis of seconds; needs no display.

    Parameters
    ----------
    distributions
        One a policy.
    policies
        All labels of the study, which fix the colours.
    title, label
        Heading, and what the times are.
    """
    with styled():
        figure = blank_figure(*_SIZE)
        axes = figure.subplots()
        for one in distributions:
            style = policy_style(one.policy, policies)
            pairs = [(at, share) for at, share in zip(one.seconds, QUANTILES, strict=True) if at > 0]
            axes.plot([at for at, _ in pairs], [share for _, share in pairs], label=one.policy, markersize=3, **style)
        if any(at > 0 for one in distributions for at in one.seconds):
            axes.set_xscale("log")
        axes.set_ylim(-2, 102)
        axes.set_xlabel(f"{label}, seconds")
        axes.set_ylabel("requests that are at least as fast, %")
        _finish(figure, axes, title, len(distributions))
    return figure


def _logarithmic(axes: Axes, loads: Sequence[float]) -> None:
    """Loads on a logarithmic axis, as many of them written as there is room for."""
    axes.set_xscale("log")
    step = -(-len(loads) // 9)
    shown = loads[::step]
    axes.set_xticks(shown, [f"{load:g}" for load in shown])
    axes.minorticks_off()


def _finish(figure: Figure, axes: Axes, title: str, num_lines: int) -> None:
    axes.grid(visible=True, which="major", alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_title(title, loc="left", fontsize=10)
    if num_lines:
        figure.legend(loc="outside lower center", ncols=min(4, num_lines), frameon=False, fontsize=8)
