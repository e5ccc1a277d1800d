"""How events become answers: the token that ends one isn't told, held text comes, waiting streams are kept open."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from http_servers import MODEL, Serve, open_stream, prompt_of, read_until

from runtime.generation import EndEvent, GenerationRequest, Reason, Sampling, TokenEvent
from runtime.server.answering import collect, end_error
from runtime.server.dialects import ChatDialect, CompletionDialect, Envelope
from runtime.server.errors import ApiError
from runtime.server.replies import Part, Reply
from runtime.steps import RowLogprobs
from runtime.text import TextCodec


@pytest.mark.parametrize("ignores_eos", [False, True])
@pytest.mark.parametrize("dialect", [ChatDialect, CompletionDialect])
def test_the_token_that_ends_an_answer_is_counted_and_not_shown(
    folder: Path, dialect: type[ChatDialect | CompletionDialect], ignores_eos: bool
) -> None:
    codec = TextCodec(folder)
    (eos,) = codec.eos_ids
    letter = codec.encode("a")[0]
    sampling = Sampling(num_logprobs=0, ignores_eos=ignores_eos)

    async def run() -> dict[str, object]:
        part = Part(GenerationRequest((5, 6), 9, sampling), 0)
        reply = Reply((part,), 10)
        for index, (token, text) in enumerate(((letter, "a"), (eos, ""))):
            part.token_ns.append(index)
            reply.put(0, TokenEvent(token, text, index, index, RowLogprobs(-0.5)))
        reply.put(0, EndEvent(Reason.STOP, "\ufffd", "", 2, 2, 5))  # half a character was held back
        said = dialect(codec)
        response = await collect(reply, said, Envelope(said, "1", MODEL, 0), codec.eos_ids, 1)
        body: dict[str, object] = json.loads(response.body)
        return body

    body = asyncio.run(run())
    choice = body["choices"][0]  # type: ignore[index]
    assert body["usage"]["completion_tokens"] == 2  # type: ignore[index]
    assert choice["finish_reason"] == "stop"
    told = choice["logprobs"]
    if dialect is ChatDialect:
        assert choice["message"]["content"] == "a\ufffd"
        assert [one["token"] for one in told["content"]] == ["a", "<|im_end|>"][: 1 + ignores_eos]
    else:
        assert choice["text"] == "a\ufffd"
        assert told["tokens"] == ["a", "<|im_end|>"][: 1 + ignores_eos]


def test_a_token_that_is_half_a_character_is_told_by_its_bytes(folder: Path) -> None:
    codec = TextCodec(folder)
    first, second = codec.encode("é")
    events = [TokenEvent(first, "", 0, 0, RowLogprobs(-1.0, (second,), (float("-inf"),)))]
    told = ChatDialect(codec).piece(0, events, "", 0)["logprobs"]["content"][0]
    assert (told["token"], told["bytes"]) == ("\ufffd", [0xC3])
    assert told["top_logprobs"][0] == {"token": "\ufffd", "logprob": -9999.0, "bytes": [0xA9]}
    json.loads(json.dumps(told, allow_nan=False))


def test_ends_that_are_no_answers_have_a_status() -> None:
    def status(reason: Reason) -> ApiError:
        return end_error(EndEvent(reason, "", "", 1, 0, 0), 4)

    assert status(Reason.REJECTED).status == 429
    assert status(Reason.ERROR).status == status(Reason.ABORT).status == 503
    assert status(Reason.REJECTED).headers == {"Retry-After": "4"}


def test_a_stream_that_waits_is_kept_open(serve: Serve) -> None:
    server = serve(keepalive_s=0.05)
    server.executor.hold()
    sock = open_stream(server, {"prompt": prompt_of(5), "max_tokens": 3, "ignore_eos": True})
    head = read_until(sock, b": waiting\n\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"text/event-stream" in head
    server.executor.release()
    rest = read_until(sock, b"[DONE]")
    assert rest.count(b'"finish_reason":null') == 3
    sock.close()
