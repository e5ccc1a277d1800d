"""The HTTP server: OpenAI's interface, health, metrics and a status page, in front of an engine.

A request's way: ``body`` and ``fields`` read it, ``prompts`` makes tokens, ``limits`` lets it in, ``frontend`` hands it
to the engine through ``engine_link``; the engine's events come back through ``replies``, ``answering`` says them in a
``dialects`` shape, ``metrics`` counts them. ``serving`` runs it all on a socket.
"""

from __future__ import annotations

from runtime.server.app import make_app
from runtime.server.options import ServerOptions
from runtime.server.serving import check_port, listen, serve

__all__ = ["ServerOptions", "check_port", "listen", "make_app", "serve"]
