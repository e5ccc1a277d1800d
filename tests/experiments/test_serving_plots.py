from __future__ import annotations

from pathlib import Path

from serving_rows import sweep_rows

from experiments.plots import save
from experiments.serving_curves import curves, distributions, panels
from experiments.serving_plots import draw_curves, draw_distributions, policy_style


def test_curves_draw(tmp_path: Path) -> None:
    (panel,) = panels(sweep_rows())
    figure = draw_curves(
        curves(panel, "mean_satisfaction"), panel.policies, panel.name, "mean satisfaction", has_share_axis=True
    )
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.lines] == ["orca", "slob"]
    assert len(axes.collections) == 2  # a band each
    _, svg = save(figure, tmp_path, "curves")
    text = svg.read_text(encoding="utf-8")
    assert "offered concurrency" in text
    assert panel.name in text


def test_distributions_draw(tmp_path: Path) -> None:
    (panel,) = panels(sweep_rows())
    figure = draw_distributions(distributions(panel, "ttft_deciles_s", 1.0), panel.policies, "t", "time to first token")
    assert figure.axes[0].get_xscale() == "log"
    save(figure, tmp_path, "times")


def test_a_policy_looks_the_same_in_every_picture() -> None:
    names = [f"p{index}" for index in range(23)]
    styles = [tuple(policy_style(name, names).items()) for name in names]
    assert len(set(styles)) == len(names)
    assert policy_style("p3", names) == policy_style("p3", names)
