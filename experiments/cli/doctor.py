"""`slob doctor`: is this environment fit for use."""

from __future__ import annotations

import typer
from rich.table import Table
from rich.text import Text

from experiments.cli import options as opt
from experiments.cli import screen
from experiments.cli.environment import cuda_device_order
from experiments.environment_check import check_all

_COLOURS = {"ok": "green", "absent": "yellow", "broken": "bold red"}


def doctor(format: opt.Format = opt.OutputFormat.TABLE) -> None:
    """Check the environment: packages, solvers, devices.

    Packages are looked up without importing them; solvers are started. Exit code 1 when something needed is broken.

    Example: slob doctor --format json
    """
    checks = check_all(cuda_device_order())
    broken = [check.name for check in checks if check.state == "broken"]
    if format is opt.OutputFormat.JSON:
        found = [{"name": check.name, "state": check.state, "detail": check.detail} for check in checks]
        screen.print_json({"is_fit": not broken, "checks": found})
    else:
        table = Table(box=None, pad_edge=False, show_header=False)
        for check in checks:
            table.add_row(check.name, Text(check.state, style=_COLOURS[check.state]), Text(check.detail))
        screen.printer().print(table)
    if broken:
        raise typer.Exit(1)
