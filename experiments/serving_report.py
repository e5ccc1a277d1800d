"""The report of a study: one HTML page made of what lies in its folder."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.gantt import busy_window, draw_gantt, gantt_data
from experiments.serving_curves import (
    Panel,
    contested_load,
    curves,
    distributions,
    has_column,
    panels,
    point_rows,
    ranking,
)
from experiments.serving_plots import draw_curves, draw_distributions
from experiments.serving_report_page import (
    code,
    details,
    heading,
    page,
    paragraph,
    picture,
    pictures,
    table,
    verdict,
)
from slob_opt.errors import InputError
from slob_opt.metrics.trace_reader import Trace, read_trace

SUMMARY_NAME, TRACE_NAME = "summary.json", "example.trace.jsonl"
"""Files of a study's folder."""

MOST_ROWS = 200
"""Rows of a kind that the page shows; the others are in the summary."""

FIGURES = (
    ("mean_satisfaction", "mean satisfaction", True),
    ("p10_satisfaction", "10th percentile of satisfaction", True),
    ("goodput", "requests/s that met their targets", False),
)
"""(column, what it is, whether it runs from 0 to 1) of the figures against load."""

TIMES = (("ttft_deciles_s", "time to first token"), ("tpot_deciles_s", "time per output token"))
"""(column, what it is) of the distributions."""

_LEFT_OUT = ("kind", *[column for column, _ in TIMES])


@dataclass(frozen=True, slots=True)
class Study:
    """What lies in a study's folder.

    Attributes
    ----------
    name
        Of the study.
    claims, rows
        As the summary has them.
    provenance, config
        Where it ran and how it was called; empty where the summary doesn't tell.
    trace
        An example run; ``None`` where there is none.
    """

    name: str
    claims: tuple[Mapping[str, Any], ...]
    rows: tuple[Mapping[str, Any], ...]
    provenance: Mapping[str, Any]
    config: Mapping[str, Any]
    trace: Trace | None

    @property
    def command(self) -> str:
        """The command that made it, as far as the summary tells."""
        words = ["slob", "study", self.name]
        words += ["--quick"] if self.config.get("is_quick") is True else []
        for option in ("seed", "workers", "file"):
            if self.config.get(option) is not None:
                words += [f"--{option}", str(self.config[option])]
        return shlex.join(words)


def read_study(folder: Path) -> Study:
    """Return a study from its folder.

    Raises
    ------
    InputError
        When the folder or its summary is missing or isn't that of a study, or the trace in it is wrong.
    """
    if not folder.exists():
        raise InputError("no such folder, expected the folder that slob study wrote to", file=str(folder))
    if not folder.is_dir():
        raise InputError("this is a file, expected the folder that slob study wrote to", file=str(folder))
    path = folder / SUMMARY_NAME
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(
            f"no {SUMMARY_NAME} in the folder; slob study NAME --out {folder} writes it", file=str(folder)
        ) from error
    except UnicodeDecodeError as error:
        raise InputError("the file is not UTF-8 text", file=str(path)) from error
    except json.JSONDecodeError as error:
        raise InputError(f"not valid JSON: {error.msg} at line {error.lineno}", file=str(path)) from error
    if not isinstance(data, dict) or "study" not in data:
        raise InputError("the key is missing, expected the summary of slob study", file=str(path), key="study")
    name = data["study"]
    if not isinstance(name, str):
        raise InputError(f"found {name!r}, expected the name of a study", file=str(path), key="study")
    trace = folder / TRACE_NAME
    return Study(
        name,
        _objects(data, "claims", path, ("id", "value", "unit", "target", "holds")),
        _objects(data, "rows", path, ()),
        _mapping(data, "provenance", path),
        _mapping(data, "config", path),
        read_trace(trace) if trace.exists() else None,
    )


def _objects(data: Mapping[str, Any], key: str, path: Path, names: Sequence[str]) -> tuple[Mapping[str, Any], ...]:
    found = data.get(key)
    if not isinstance(found, list):
        told = "the key is missing" if key not in data else f"found {type(found).__name__}"
        raise InputError(f"{told}, expected a list", file=str(path), key=key)
    for index, item in enumerate(found):
        if not isinstance(item, dict):
            raise InputError(f"found {type(item).__name__}, expected an object", file=str(path), key=f"{key}[{index}]")
        for name in names:
            if name not in item:
                raise InputError("the key is missing", file=str(path), key=f"{key}[{index}].{name}")
    return tuple(found)


def _mapping(data: Mapping[str, Any], key: str, path: Path) -> Mapping[str, Any]:
    found = data.get(key, {})
    if not isinstance(found, dict):
        raise InputError(f"found {type(found).__name__}, expected an object", file=str(path), key=key)
    return found


def report_page(study: Study) -> str:
    """Return the page; equal studies give equal pages."""
    sections = [
        heading(1, f"Study {study.name}"),
        paragraph(_subtitle(study), is_note=True),
        heading(2, "Claims"),
        _claims(study),
    ]
    if point_rows(study.rows):
        sections += [heading(2, "Ranking of policies"), _ranking(study), *_figures(study)]
    if point_rows(study.rows) or study.trace is not None:
        sections += [heading(2, "Stages at work"), _gantt(study)]
    sections += [heading(2, "Inputs and versions"), *_inputs(study), heading(2, "Rows"), *_rows(study)]
    return page(f"slob study {study.name}", sections)


def _subtitle(study: Study) -> str:
    created, commit = study.provenance.get("created"), study.provenance.get("commit")
    parts = [f"{len(study.claims)} claims", f"{len(study.rows)} rows"]
    parts += [f"run {created}"] if created else []
    parts += [f"commit {str(commit)[:12]}"] if commit else []
    return ", ".join(parts)


def _claims(study: Study) -> str:
    if not study.claims:
        return paragraph("The study makes no claim.")
    return table(
        ("claim", "value", "unit", "target", "holds"),
        [(one["id"], one["value"], one["unit"], one["target"], verdict(one["holds"])) for one in study.claims],
    )


def _ranking(study: Study) -> str:
    found = ranking(study.rows)
    if not found:
        return paragraph("No point has several policies with a mean satisfaction, so there is no ranking.")
    names = ("policy", "mean rank", "wins", "points", "mean satisfaction", "p10 satisfaction", "goodput, requests/s")
    note = (
        "Place by mean satisfaction among the policies of each point (system, workload, engine, load, seed), averaged"
        " over points; the means beside it are over the points at which the policy ran."
    )
    rows = [
        (
            one.policy, float(one.mean_rank), one.wins, one.num_points, one.mean_satisfaction, one.p10_satisfaction,
            one.goodput,
        )
        for one in found
    ]  # fmt: skip
    return table(names, rows) + paragraph(note, is_note=True)


def _figures(study: Study) -> list[str]:
    """Figures of each system, workload and engine; the first one unfolded."""
    found = panels(study.rows)
    policies = tuple(dict.fromkeys(policy for panel in found for policy in panel.policies))
    sections = [
        heading(2, "Satisfaction and times against load"),
        paragraph("Lines are means over seeds, bands their 95 % confidence intervals (Student's t).", is_note=True),
    ]
    rows = point_rows(study.rows)
    missing = [text for column, text, _ in FIGURES if not has_column(rows, column)]
    missing += [f"distribution of {text}" for column, text in TIMES if not has_column(rows, column)]
    if missing:
        sections.append(paragraph(f"Left out, since no row holds it: {'; '.join(missing)}."))
    for index, panel in enumerate(found):
        drawn = _panel_figures(panel, policies, f"f{index}")
        content = pictures(drawn) if drawn else paragraph("No row of this system and workload has a figure to draw.")
        sections.append(details(panel.name, content, is_open=index == 0))
    return sections


def _panel_figures(panel: Panel, policies: Sequence[str], name: str) -> list[str]:
    drawn = []
    for column, text, is_share in FIGURES:
        lines = curves(panel, column)
        if lines:
            figure = draw_curves(lines, policies, panel.name, text, has_share_axis=is_share)
            drawn.append(picture(figure, f"{name}-{column.replace('_', '-')}", f"{panel.name}: {text} against load"))
    load = contested_load(panel)
    load = panel.loads[0] if load is None else load
    for column, text in TIMES:
        times = distributions(panel, column, load)
        if times:
            figure = draw_distributions(times, policies, f"{panel.name}, load {load:g}", text)
            caption = f"{panel.name}: distribution of {text} at load {load:g}, where policies differ most"
            drawn.append(picture(figure, f"{name}-{column.replace('_', '-')}", caption))
    return drawn


def _gantt(study: Study) -> str:
    trace = study.trace
    if trace is None:
        return paragraph(f"No chart: the folder holds no {TRACE_NAME}.")
    if not trace.iterations:
        return paragraph(f"No chart: {TRACE_NAME} has no iteration.")
    header = trace.header
    title = f"{header.policy} on {header.cluster}, {header.model}, {header.workload}"
    figure = draw_gantt(gantt_data(trace, *busy_window(trace)), title)
    caption = f"{title}: the busiest stretch of the example run, a row per stage; blank is idle"
    return picture(figure, "gantt", caption)


def _inputs(study: Study) -> list[str]:
    """Command, configuration, study file, system, versions, machine."""
    sections = [heading(3, "Command"), code(study.command)]
    if not study.config:
        sections.append(paragraph("The summary doesn't tell the options it was called with.", is_note=True))
    for title, value in (
        ("Configuration", study.config),
        ("Versions", study.provenance.get("versions")),
        ("Machine", study.provenance.get("machine")),
    ):
        if isinstance(value, Mapping) and value:
            sections += [heading(3, title), table(("what", "value"), list(value.items()))]
    rest = [(key, value) for key, value in study.provenance.items() if key not in ("versions", "machine")]
    if rest:
        sections += [heading(3, "Source"), table(("what", "value"), rest)]
    for row in study.rows:
        if row.get("kind") == "file":
            text = json.dumps({key: value for key, value in row.items() if key != "kind"}, indent=2, ensure_ascii=False)
            sections.append(details(f"Study file {row.get('file', '')}", code(text)))
    if study.trace is not None:
        text = json.dumps(study.trace.header.as_json(), indent=2, ensure_ascii=False)
        sections.append(details(f"Header of {TRACE_NAME}", code(text)))
    return sections


def _rows(study: Study) -> list[str]:
    """A folded table for each kind of row."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for row in study.rows:
        if row.get("kind") != "file":
            kinds.setdefault(str(row.get("kind", "row")), []).append(row)
    if not kinds:
        return [paragraph("The study has no rows.")]
    sections = []
    for kind, members in kinds.items():
        columns = [name for name in dict.fromkeys(key for row in members for key in row) if name not in _LEFT_OUT]
        shown = members[:MOST_ROWS]
        content = table(columns, [tuple(row.get(name) for name in columns) for row in shown])
        if len(members) > len(shown):
            content += paragraph(
                f"{len(members) - len(shown)} more rows of this kind are in {SUMMARY_NAME}.", is_note=True
            )
        sections.append(details(f"{kind}: {len(members)} rows", content))
    return sections
