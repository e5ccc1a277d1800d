"""Entry point of `slob`: knows the commands' names and loads the one that is called.

Exit codes: 0 done, 1 a negative answer (no plan, invalid plan, a claim that does not hold), 2 wrong input or an
environment that can't do what was asked, told in one sentence on stderr.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any, TextIO, cast

import typer
from typer.core import TyperGroup

from experiments.package_origin import common_folder
from slob_opt.errors import SlobError, SlobWarning

COMMANDS = {
    "plan": "Find the best placement for one cluster and one model.",
    "compare": "Run many methods and prove how good each plan is.",
    "validate": "Check a plan file again: memory, times, bound.",
    "catalog": "List the GPUs, models or clusters that are bundled.",
    "doctor": "Check the environment: packages, solvers, devices.",
    "simulate": "Serve a workload in simulation and show how satisfied its clients are.",
    "serve": "Serve a model from the devices of a plan, with an OpenAI-compatible interface.",
    "model": "Fetch and list models that can be served.",
    "calibrate": "Measure the devices of this machine for the cost model.",
    "worker": "Hold stages on this machine for a server on another one, until it goes.",
    "demo": "Plan, prove and serve a real model on two unequal devices that this machine emulates.",
    "workload": "Describe, convert and sample workloads: traces and presets.",
    "study": "Run a study that measures the claims of the README again.",
    "timeline": "Draw a trace file: timeline for Perfetto, Gantt chart of stages.",
    "report": "Make one self-contained HTML page of a study.",
}
"""Each command's module (``experiments.cli.<name>``) and the first line of its help."""


_UsageError = cast(type[Exception], typer.BadParameter.__mro__[1])
"""What Typer raises for a wrong command line; it exports the name of this kind only."""


class LazyGroup(TyperGroup):
    """Group of stand-ins that loads a command's module when that command is called; the list needs none of them."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the real command in place of its stand-in; `doctor` tells of foreign packages itself."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and command is not None:
            if name != "doctor":
                common_folder()
            command = load_command(name)
        return name, command, rest


def load_command(name: str) -> Any:
    """Return the command of module ``experiments.cli.<name>``: its function, or its group, of the same name."""
    module = importlib.import_module(f"experiments.cli.{name}")
    if isinstance(getattr(module, name), typer.Typer):
        return typer.main.get_command(getattr(module, name))
    holder = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)
    holder.command(name)(getattr(module, name))
    return typer.main.get_command(holder)


def _stand_in(name: str, summary: str) -> Any:
    def nothing() -> None:
        raise AssertionError(f"the stand-in of {name} was called")

    nothing.__doc__ = summary
    nothing.__name__ = name
    return nothing


def _version(value: bool) -> None:
    if value:
        from slob_opt import __version__

        typer.echo(f"slob {__version__}")
        raise typer.Exit


def make_app() -> typer.Typer:
    """Return the application with a stand-in for every command."""
    app = typer.Typer(
        cls=LazyGroup,
        help="Place an LLM on unequal GPUs, with a proof of how good the plan is.",
        epilog="Example: slob plan --cluster helix-single24 --model llama-2-70b",
        no_args_is_help=True,
        rich_markup_mode=None,  # plain help here: loading rich would double the start-up time
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def root(
        version: Annotated[
            bool, typer.Option("--version", help="Print the version and stop.", callback=_version, is_eager=True)
        ] = False,
    ) -> None:
        pass

    for name, summary in COMMANDS.items():
        app.command(name, help=summary)(_stand_in(name, summary))
    return app


def _tell(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning of ours as one sentence, others as Python does."""
    if issubclass(category, SlobWarning):
        print(f"slob: warning: {message}", file=sys.stderr)
    else:
        print(warnings.formatwarning(message, category, filename, lineno, line), end="", file=file or sys.stderr)


def usage_sentence(error: Any) -> str:
    """Return what is wrong with a command line in one sentence, named as the option or argument is written.

    Parameters
    ----------
    error
        Typer's own exception.
    """
    param = getattr(error, "param", None)
    message = str(error.message).removeprefix("Value error, ").rstrip(".")
    if param is not None and message and not type(error).__name__.startswith("Missing"):
        return f"{max(param.opts, key=len)}: {message}"
    told = " ".join(str(error.format_message()).split()).rstrip(".")
    told = told[:1].lower() + told[1:]
    path = "slob" if error.ctx is None else error.ctx.command_path
    return told if told.endswith("?") else f"{told}; see {path} --help"


def main(argv: Sequence[str] | None = None) -> None:
    """Run `slob`; ends the process with its exit code.

    Parameters
    ----------
    argv
        Arguments without the program's name; ``None`` takes the process's own.
    """
    with warnings.catch_warnings():
        warnings.showwarning = _tell
        try:
            arguments = None if argv is None else list(argv)
            code = make_app()(args=arguments, prog_name="slob", standalone_mode=False)
        except _UsageError as error:
            is_help = type(error).__name__ == "NoArgsIsHelpError"  # no arguments at all: the list of commands
            print(error if is_help else f"slob: {usage_sentence(error)}", file=sys.stderr)
            sys.exit(2)
        except typer.Abort:
            print("slob: stopped", file=sys.stderr)
            sys.exit(1)
        except SlobError as error:
            print(f"slob: {error}", file=sys.stderr)
            sys.exit(2)
        except OSError as error:
            where = f" {error.filename}" if error.filename else ""
            print(f"slob: can't read or write{where}: {error.strerror or error}", file=sys.stderr)
            sys.exit(2)
    if code:
        sys.exit(code)


if __name__ == "__main__":
    main()
