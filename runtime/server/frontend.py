"""Between HTTP and the engine: takes a request's fields, has them answered, and keeps count."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request
from starlette.responses import Response

from runtime.engine import Engine
from runtime.generation import EngineStatus, GenerationRequest, RequestRefused, Sampling
from runtime.server.answering import StreamedReply, StreamStyle, collect, first_events
from runtime.server.client import Client, ClientGone
from runtime.server.dialects import ChatDialect, CompletionDialect, Dialect, Envelope
from runtime.server.engine_link import EngineLink
from runtime.server.errors import ApiError, of_refusal, try_again
from runtime.server.fields import ChatFields, CompletionFields, SharedFields
from runtime.server.limits import check_room, context_tokens, fitted_tokens, wanted_tokens
from runtime.server.metrics import ServerMetrics
from runtime.server.options import ServerOptions
from runtime.server.prompts import chat_messages, chat_tokens, completion_prompts, prompt_tokens
from runtime.server.replies import Exchange, Part, Reply

T = TypeVar("T")

_GREEDY_BELOW = 1e-5
"""Temperatures that are meant as none; dividing by them would overflow."""


@dataclass(frozen=True, slots=True)
class Call:
    """An HTTP request that is to be answered.

    Attributes
    ----------
    request
        Of the web framework, its body read.
    label
        The client's name for it; ``None`` without one.
    headers
        For the response.
    arrival_ns
        ``time.monotonic_ns`` when it came.
    """

    request: Request
    label: str | None
    headers: dict[str, str]
    arrival_ns: int


class Frontend:
    """Answers requests, in the thread of one loop.

    Parameters
    ----------
    engine
        Started.
    options
        How.

    Attributes
    ----------
    metrics
        What Prometheus reads.
    is_draining
        Whether no more requests are taken.
    created
        When the server was made, Unix time in seconds.
    link, exchange
        Calls to the engine; what it says.
    """

    def __init__(self, engine: Engine, options: ServerOptions) -> None:
        self.engine, self.codec, self.options = engine, engine.codec, options
        self.metrics = ServerMetrics(options.model_name, engine.options.spec, options.plan_gap)
        self.is_draining = False
        self.created = int(time.time())
        self.link = EngineLink(engine)
        self.exchange = Exchange(self.metrics, self.link.abort)
        self._text = ThreadPoolExecutor(2, "slob-text")  # so that one long prompt doesn't hold up all others

    def close(self) -> None:
        """Give up what is still live and make no more calls."""
        self.exchange.fail_all("the server went down")
        self.link.close()
        self._text.shutdown(wait=False)

    @property
    def context_tokens(self) -> int:
        """Most tokens of prompt and answer."""
        return context_tokens(self.engine.max_tokens, self.options)

    async def status(self) -> tuple[EngineStatus | None, bool]:
        """Return the engine's status and whether it's of now."""
        return await self.link.status()

    # ------------------------------------------------------------------ going down

    def begin_drain(self) -> None:
        """Take no more requests; those that are live go on."""
        self.is_draining = True
        self.link.begin_drain()

    async def finish(self) -> None:
        """Wait for live requests as long as the options say, then end the rest with an error."""
        if not await self.exchange.wait_idle(self.options.drain_s):
            self.exchange.fail_all(f"the server went down: the answer took longer than {self.options.drain_s:g} s")

    # ------------------------------------------------------------------ answering

    async def chat(self, call: Call, fields: ChatFields) -> Response:
        """Answer a chat; raises ApiError."""
        messages = chat_messages(fields.messages)
        tokens = await self._in_text_thread(lambda: chat_tokens(self.codec, messages))
        part = self._request(call, fields, tokens, fields.num_logprobs, "messages")
        return await self._answer(call, fields, ChatDialect(self.codec), (part,))

    async def complete(self, call: Call, fields: CompletionFields) -> Response:
        """Answer a completion request; raises ApiError."""
        prompts = completion_prompts(fields.prompt, self.codec, self.options.max_prompts)
        tokens = await self._in_text_thread(lambda: [prompt_tokens(self.codec, prompt) for prompt in prompts])
        parts = tuple(self._request(call, fields, one, fields.logprobs, "prompt") for one in tokens)
        return await self._answer(call, fields, CompletionDialect(self.codec), parts)

    async def _in_text_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._text, work)

    def _request(
        self, call: Call, fields: SharedFields, tokens: tuple[int, ...], num_logprobs: int | None, param: str
    ) -> GenerationRequest:
        """Return what the engine gets; raises ApiError when it's too long."""
        context, options = self.context_tokens, self.options
        if not context:
            self.metrics.refused("unavailable")
            raise try_again(503, "no pipeline is up", options.retry_after_s)
        wanted = wanted_tokens(fields, options)
        max_new = fitted_tokens(len(tokens), wanted, context, options, param)
        slo = fields.slo
        return GenerationRequest(
            tokens, max_new, self._sampling(fields, num_logprobs),
            1.0 if fields.priority is None else fields.priority,
            None if slo is None else slo.ttft_s, None if slo is None else slo.tpot_s,
            fields.user or call.label,
        )  # fmt: skip

    def _sampling(self, fields: SharedFields, num_logprobs: int | None) -> Sampling:
        temperature = self.options.default_temperature if fields.temperature is None else fields.temperature
        top_p = 1.0 if fields.top_p is None else fields.top_p
        if temperature < _GREEDY_BELOW or top_p == 0:  # no mass at all: the best token alone
            temperature, top_p = 0.0, 1.0
        seed = None if fields.seed is None else fields.seed % 2**63
        return Sampling(
            temperature, top_p, max(fields.top_k or 0, 0), seed, fields.stops, num_logprobs, bool(fields.ignore_eos)
        )  # fmt: skip

    async def _answer(
        self, call: Call, fields: SharedFields, dialect: Dialect, requests: tuple[GenerationRequest, ...]
    ) -> Response:
        """Submit the parts of a request and return the response that tells what comes of them."""
        exchange, options = self.exchange, self.options
        try:
            check_room(exchange.num_waiting, len(requests), options)
        except ApiError:
            self.metrics.refused("full")
            raise
        parts = tuple(Part(one, call.arrival_ns) for one in requests)
        reply = Reply(parts, options.max_buffered_events * len(parts) if fields.stream else None)
        client = Client(call.request)
        envelope = Envelope(dialect, uuid.uuid4().hex, options.model_name, int(time.time()))

        def end() -> None:
            exchange.drop(reply)
            client.close()

        exchange.open(reply)
        try:
            await self._submit(reply)
            if not fields.stream:
                whole = collect(reply, dialect, envelope, self.codec.eos_ids, options.retry_after_s)
                response = await client.attend(whole)
                response.headers.update(call.headers)
                end()
                return response
            first = await client.attend(first_events(reply, options.keepalive_s, options.retry_after_s))
        except ClientGone:
            end()
            return Response(status_code=499)  # nobody reads it
        except BaseException:
            end()
            raise
        usage = fields.usage_options
        style = StreamStyle(
            bool(usage.include_usage), bool(usage.continuous_usage_stats), options.keepalive_s, options.retry_after_s
        )
        return StreamedReply(
            client, reply, first, dialect, envelope, style, self.codec.eos_ids,
            on_slow=self.metrics.slow_client, on_end=end, headers=call.headers,
        )  # fmt: skip

    async def _submit(self, reply: Reply) -> None:
        """Hand all parts to the engine; raises ApiError when it doesn't take one."""
        for index, part in enumerate(reply.parts):
            try:
                part.number = await self.link.submit(part.request, self.exchange.sink(reply, index))
            except BaseException as error:
                for missing in range(index, len(reply.parts)):
                    self.exchange.over(reply, missing)
                if isinstance(error, RequestRefused):
                    self.metrics.refused({"busy": "full", "unavailable": "unavailable"}.get(error.kind, "invalid"))
                    raise of_refusal(error, self.options.retry_after_s) from None
                raise
