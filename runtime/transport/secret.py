"""The secret that the two ends of a connection between machines show each other, before anything else."""

from __future__ import annotations

import hmac
import socket
import time

from slob_opt.errors import EngineError

TOKEN_TIMEOUT_S = 5.0
"""In which who has connected must show the secret."""


def send_token(connection: socket.socket, token: str) -> None:
    """Show a secret to the other end, once, before anything else."""
    data = token.encode()
    connection.sendall(len(data).to_bytes(2, "big") + data)


def check_token(connection: socket.socket, token: str, who: str) -> None:
    """Close a connection and raise EngineError unless the other end shows the secret soon."""
    by = time.monotonic() + TOKEN_TIMEOUT_S
    try:
        size = int.from_bytes(_exactly(connection, 2, by), "big")
        shown = _exactly(connection, size, by) if size <= 1024 else b""
    except OSError as error:
        connection.close()
        raise EngineError(f"{who} connected and said nothing") from error
    if not hmac.compare_digest(shown, token.encode()):
        connection.close()
        raise EngineError(f"{who} connected with a wrong token")
    connection.settimeout(None)


def _exactly(connection: socket.socket, count: int, by: float) -> bytes:
    data = b""
    while len(data) < count:
        connection.settimeout(max(0.001, by - time.monotonic()))
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionError("closed")
        data += more
    return data
