"""What `slob compare` leaves behind: files in a folder, runs in the store."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from experiments.comparison import Comparison
from experiments.gap_curves import gap_curves
from experiments.layer_map import LayerMap
from experiments.plan_output import make_folder, write_plan
from experiments.plots import draw_gap_curves, draw_layer_map, save
from experiments.provenance import Provenance
from experiments.report import is_reproducible, outcome_record, unit_of
from experiments.run_record import RunRecord, flatten
from experiments.tracking import TrackingStore
from slob_opt.errors import TrackingError
from slob_opt.problem.files.documents import write_whole
from slob_opt.problem.placement import Placement


@dataclass(frozen=True, slots=True)
class CompareFiles:
    """Files of one instance.

    Attributes
    ----------
    folder
        Where they are.
    plans
        (method, file) of every method with a plan.
    plots
        Layer map and gap over time, PNG and SVG each; empty when no method found anything.
    """

    folder: Path
    plans: tuple[tuple[str, Path], ...]
    plots: tuple[Path, ...]


def folder_name(name: str) -> str:
    """Return a file name made from an instance's name.

    Examples
    --------
    >>> folder_name("Helix 24/llama-2-70b/interval-k4")
    'Helix-24_llama-2-70b_interval-k4'
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name.replace("/", "_")).strip("-")


def write_json(path: Path, value: object) -> None:
    """Write a JSON file, two spaces deep, whole or not at all; makes the folder.

    Raises
    ------
    InputError
        When the folder or the file can't be written.
    """
    make_folder(path.parent)
    write_whole(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def save_comparison(folder: Path, comparison: Comparison) -> CompareFiles:
    """Write a plan per method, the layer map and the gap over time below ``folder/<instance>``."""
    place = folder / folder_name(comparison.setup.instance.name)
    plans = []
    for outcome in comparison.outcomes:
        if outcome.result.placement is not None:
            path = place / f"plan-{outcome.method}.json"
            write_plan(path, comparison, outcome)
            plans.append((outcome.method, path))
    plots: list[Path] = []
    throughput = comparison.setup.instance.is_throughput
    maps = layer_maps(comparison)
    title = comparison.setup.instance.name.replace("/", " · ")
    if maps:
        plots += save(draw_layer_map(maps, title), place, "layer-map")
    curves = gap_curves((o.result for o in comparison.outcomes), throughput)
    if curves:
        plots += save(draw_gap_curves(curves, title, unit_of(throughput)), place, "gap-over-time")
    return CompareFiles(place, tuple(plans), tuple(plots))


def layer_maps(comparison: Comparison) -> list[tuple[str, LayerMap]]:
    """Return (methods, layer map) of every plan, methods with the very same plan together."""
    methods: dict[Placement, list[str]] = {}
    found: dict[Placement, LayerMap] = {}
    for outcome in comparison.outcomes:
        placement = outcome.result.placement
        if placement is not None and outcome.layers is not None and outcome.layers.rows:
            methods.setdefault(placement, []).append(outcome.method)
            found[placement] = outcome.layers
    return [(", ".join(names), found[placement]) for placement, names in methods.items()]


def save_report(folder: Path, report: Mapping[str, object], files: tuple[CompareFiles, ...]) -> Path:
    """Write ``report.json`` with the paths of all other files, relative to the folder, and return its path."""
    listed = [
        {
            "folder": str(saved.folder.relative_to(folder)),
            "plans": {method: str(path.relative_to(folder)) for method, path in saved.plans},
            "plots": [str(path.relative_to(folder)) for path in saved.plots],
        }
        for saved in files
    ]
    path = folder / "report.json"
    write_json(path, {**report, "files": listed})
    return path


def track_comparisons(
    store: TrackingStore,
    config: Mapping[str, object],
    provenance: Provenance,
    pairs: tuple[tuple[Comparison, CompareFiles], ...],
    report: Path,
    wall_s: float,
) -> str:
    """Store one parent run and a child per (instance, method, seed); return the parent's id.

    Raises
    ------
    TrackingError
        When the store can't be written.
    """
    outcomes = [outcome for comparison, _ in pairs for outcome in comparison.outcomes]
    reproducible = all(is_reproducible(outcome.result) for outcome in outcomes)
    parent = RunRecord(
        name="compare",
        tags=(*provenance.as_tags().items(), ("reproducible", "yes" if reproducible else "no")),
        params=flatten(dict(config)),
    )
    parent_id = store.start(parent)
    try:
        for comparison, saved in pairs:
            plans = dict(saved.plans)
            for outcome in comparison.outcomes:
                files = (("", str(plans[outcome.method])),) if outcome.method in plans else ()
                store.write(outcome_record(comparison, outcome, files), parent_run_id=parent_id)
        summary = RunRecord(
            name="compare",
            metrics=(
                ("num_instances", float(len(pairs))),
                ("num_methods", float(len(outcomes))),
                ("num_failed", float(sum(not outcome.has_plan for outcome in outcomes))),
                ("num_disagreements", float(sum(len(comparison.disagreements) for comparison, _ in pairs))),
                ("wall_s", wall_s),
            ),
            files=(
                ("", str(report)),
                *((f"plots/{saved.folder.name}", str(path)) for _, saved in pairs for path in saved.plots),
            ),
        )
        store.append(parent_id, summary)
        store.finish(parent_id)
    except TrackingError:
        with suppress(TrackingError):  # the first error is the one to tell
            store.finish(parent_id, has_failed=True)
        raise
    return parent_id
