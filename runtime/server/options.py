"""What an operator chooses about the server."""

from __future__ import annotations

from dataclasses import dataclass

from slob_opt.errors import InputError


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How the server meets its clients.

    Attributes
    ----------
    model_name
        What clients call the model.
    host, port
        Where to listen; port 0 takes a free one.
    api_key
        What clients of ``/v1`` have to show as bearer token; ``None`` lets everybody in.
    max_model_len
        Most tokens of prompt and answer; ``None`` takes what the model and the KV memory hold.
    max_answer_tokens
        Most tokens that a request may ask for; ``None`` sets no limit of its own.
    default_max_tokens
        Answer tokens of a request that names none, if so many fit; ``None`` fills what fits.
    default_temperature
        Of a request that names none; 1 is what OpenAI's interface promises.
    max_waiting
        Requests that may wait for their first token; more are told to come again.
    max_prompts
        Prompts in one request.
    max_body_bytes
        Of a request.
    max_buffered_events
        Tokens that are kept for each prompt of a streaming client that doesn't read; beyond, its request is aborted.
    body_timeout_s
        For a client to send its request, seconds.
    keepalive_s
        After so long without a token a stream gets a comment, so that proxies keep it open, seconds.
    retry_after_s
        What a client is told to wait when the server is full or going down, seconds.
    drain_s
        How long running requests may go on after the signal to stop, seconds.
    plan_gap
        Of the plan that is served, shown in the metrics and on the page; ``None`` where no bound is known.
    plan_note
        A sentence on the plan for the page; ``None`` without one.
    """

    model_name: str
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    max_model_len: int | None = None
    max_answer_tokens: int | None = None
    default_max_tokens: int | None = 4096
    default_temperature: float = 1.0
    max_waiting: int = 256
    max_prompts: int = 64
    max_body_bytes: int = 8 * 2**20
    max_buffered_events: int = 2048
    body_timeout_s: float = 30.0
    keepalive_s: float = 15.0
    retry_after_s: int = 2
    drain_s: float = 30.0
    plan_gap: float | None = None
    plan_note: str | None = None

    def __post_init__(self) -> None:
        if not self.model_name:
            raise InputError("model_name is empty, expected the name that clients use")
        if not 0 <= self.port <= 65535:
            raise InputError(f"port {self.port}, expected 0 to 65535")
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.strip()):
            raise InputError("the API key is empty or not ASCII, expected what fits into an HTTP header")
        for name in ("max_model_len", "max_answer_tokens", "default_max_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}, expected at least 1, or none")
        for name in ("max_waiting", "max_prompts", "max_body_bytes", "max_buffered_events", "retry_after_s"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}, expected at least 1")
        for name in ("body_timeout_s", "keepalive_s"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name)}, expected above 0")
        if not self.drain_s >= 0:
            raise InputError(f"drain_s is {self.drain_s}, expected at least 0")
        if not 0 <= self.default_temperature <= 2:
            raise InputError(f"default_temperature is {self.default_temperature}, expected 0 to 2")
