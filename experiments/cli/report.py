"""`slob report`: a study as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.plan_output import make_folder
from experiments.serving_report import read_study, report_page
from slob_opt.problem.files.documents import write_whole


def report(
    folder: Annotated[Path, typer.Argument(help="Folder that slob study wrote to.", metavar="STUDY_FOLDER")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Page to write; default: report.html in the folder.")
    ] = None,
) -> None:
    """Make one self-contained HTML page of a study.

    Claims, ranking, satisfaction against load, distributions of times, all inputs and versions, and a Gantt chart where
    the folder holds example.trace.jsonl. What the study doesn't hold is left out with a sentence.

    Example: slob report runs/study-paper --out paper.html
    """
    study = read_study(folder)
    path = folder / "report.html" if out is None else out
    make_folder(path.parent)
    write_whole(path, report_page(study))
    print(f"report: {path}")
