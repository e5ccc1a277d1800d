"""`slob worker`: hold stages on this machine for a server on another one."""

from __future__ import annotations

from typing import Annotated

import typer

from experiments.cli import screen
from experiments.cli.environment import worker_token
from slob_opt.errors import InputError


def worker(
    listen: Annotated[str, typer.Option("--listen", help="HOST:PORT to wait on for the server, as 0.0.0.0:7070.")],
    token: Annotated[
        str | None,
        typer.Option("--token", help="Secret that the server must show; default: the variable SLOB_WORKER_TOKEN."),
    ] = None,
) -> None:
    """Hold stages on this machine for a server on another one, until it goes.

    The server names this worker in its workers file: {device: far/0, connect: "10.0.0.2:7070"}. The model's folder must
    be at the same path on both machines. What passes between them isn't encrypted: use it in a network you trust.

    Example: slob worker --listen 0.0.0.0:7070 --token secret
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(f"found {listen!r}, expected HOST:PORT, as 0.0.0.0:7070", key="--listen")
    secret = token or worker_token()
    if not secret:
        raise InputError("a secret is needed that the server shows", key="--token")
    from runtime.worker import serve_one

    notes = screen.notes()
    serve_one(host, int(port), secret, lambda line: notes.print(line, markup=False))
