"""`slob study`: claims of the README, measured again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from experiments.cli import options as opt
from experiments.cli import screen
from experiments.cli.environment import reference_data, tracking_uri
from experiments.compare_output import write_json
from experiments.registry import STUDIES, load_target, nearest
from experiments.run_record import RowTable, RunRecord, flatten
from experiments.store_location import store_location
from experiments.study_contract import StudyOptions, StudySummary
from experiments.tracking import TrackingStore
from slob_opt.errors import InputError, TrackingError

WITH_FILE = ("paper", "policies", "tuning", "sensitivity")
"""Studies whose sweeps stand in a file."""


def study(  # noqa: PLR0917 - Typer makes an option of each parameter
    name: Annotated[str, typer.Argument(help=f"Which study: {', '.join(STUDIES)}.")],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer instances; within two minutes on two cores.")] = False,
    seed: opt.Seed = 0,
    workers: opt.Processes = 1,
    file: Annotated[
        Path | None, typer.Option("--file", help="Study file of your own (YAML), for serving studies.")
    ] = None,
    format: opt.Format = opt.OutputFormat.TABLE,
    out: opt.OutFolder = None,
    no_track: opt.NoTrack = False,
    experiment: opt.Experiment = None,
    show_config: opt.ShowConfig = False,
) -> None:
    """Run a study that measures the claims of the README again.

    Writes summary.json and stores a run per instance and method. Exit code 1 when a claim does not hold.

    Example: slob study gap --quick --format json
    """
    if name not in STUDIES:
        raise InputError(f"no study {name!r}{nearest(name, STUDIES)}")
    if file is not None and name not in WITH_FILE:
        raise InputError(f"study {name} takes no --file; {', '.join(WITH_FILE)} do")
    folder = out if out is not None else Path("runs") / f"study-{name}"
    output = opt.OutputOptions(format, folder, None if no_track else experiment or f"slob-study-{name}")
    config: dict[str, object] = {
        "command": "study",
        "study": name,
        "is_quick": quick,
        "seed": seed,
        "workers": workers,
        "file": None if file is None else str(file),
        "output": output.effective(),
    }
    if show_config:
        screen.print_json(config)
        return
    run = load_target(STUDIES[name])
    store = None
    if output.experiment is not None:
        store = TrackingStore.open(store_location(folder, tracking_uri()), output.experiment)
    with screen.notes().status(f"study {name}") as status:
        options = StudyOptions(
            folder, quick, seed, workers, lambda text: status.update(f"study {name}: {text}"), file, reference_data()
        )
        summary: StudySummary = run(options)
    path = folder / "summary.json"
    told = {**summary.as_json(), "config": config}
    write_json(path, told)
    trouble = None
    if store is not None:
        try:
            track_study(store, config, summary, path)
        except TrackingError as error:
            trouble = error
    if format is opt.OutputFormat.JSON:
        screen.print_json(told)
    else:
        screen.printer().print(claim_table(summary))
        print(f"summary: {path}")
        print(f"store: {'not tracked' if store is None or trouble else store.location.uri}")
    if trouble is not None:
        raise TrackingError(f"{trouble}; the summary is saved in {path}") from trouble
    if not summary.holds:
        raise typer.Exit(1)


def claim_table(summary: StudySummary) -> Table:
    """Return the claims as a table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("claim")
    table.add_column("value", justify="right")
    table.add_column("unit")
    table.add_column("target")
    table.add_column("holds")
    for claim in summary.claims:
        mark = {True: Text("yes", "green"), False: Text("NO", "bold red"), None: Text("not measured", "yellow")}
        value = "–" if claim.value is None else f"{claim.value:.6g}"
        table.add_row(claim.id, value, claim.unit, claim.target, mark[claim.holds])
    return table


def track_study(store: TrackingStore, config: dict[str, object], summary: StudySummary, path: Path) -> str:
    """Store the study as one parent run with its claims as metrics, and a child per record; return the parent's id.

    Raises
    ------
    TrackingError
        When the store can't be written.
    """
    columns = tuple(dict.fromkeys(key for row in summary.rows for key in row))
    rows = RowTable("rows.csv", columns, tuple(tuple(row.get(key) for key in columns) for row in summary.rows))
    parent = RunRecord(
        name=f"study {summary.study}",
        tags=(*summary.provenance.as_tags().items(), ("study", summary.study)),
        params=flatten(config),
        metrics=tuple((claim.id, claim.value) for claim in summary.claims if claim.value is not None),
        tables=(rows,) if summary.rows else (),
        files=(("", str(path)),),
    )
    parent_id = store.start(parent)
    for record in summary.records:
        store.write(record, parent_run_id=parent_id)
    store.finish(parent_id)
    return parent_id
