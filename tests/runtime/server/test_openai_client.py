"""The official client, unchanged: what it asks for and what it makes of the answers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import openai
import pytest
from engine_setups import expected
from http_servers import CONTEXT, MODEL, Running, prompt_of

from runtime.text import TextCodec

ASK = [{"role": "user", "content": "Where do the swifts go in winter?"}]


@pytest.fixture(scope="module")
def client(shared: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{shared.url}/v1", api_key="none", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def codec(folder: Path) -> TextCodec:
    return TextCodec(folder)


@pytest.fixture(scope="module")
def asked(codec: TextCodec) -> list[int]:
    """The tokens of what is asked."""
    return codec.chat(ASK)


@pytest.fixture(scope="module")
def tokens(folder: Path, asked: list[int]) -> list[int]:
    """The greedy answer of transformers' generate()."""
    return expected(folder, asked, 12)


def test_a_chat_is_what_generate_says(
    client: openai.OpenAI, codec: TextCodec, asked: list[int], tokens: list[int]
) -> None:
    found = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=12, temperature=0)
    (choice,) = found.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == codec.decode(tokens)
    assert choice.finish_reason == "length"
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (len(asked), 12)
    assert found.usage.total_tokens == len(asked) + 12
    assert found.id.startswith("chatcmpl-")
    assert (found.object, found.model) == ("chat.completion", MODEL)
    assert found._request_id


def test_a_streamed_chat_is_the_same_in_pieces(client: openai.OpenAI, codec: TextCodec, tokens: list[int]) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=ASK, max_completion_tokens=12, temperature=0, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [chunk.choices[0].delta.content for chunk in chunks[:-1] if chunk.choices[0].delta.content]
    assert texts == [codec.token_text(token) for token in tokens]
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_usage_in_every_piece_and_a_piece_for_every_token(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=6, temperature=0, stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},  # type: ignore[typeddict-unknown-key]
    )  # fmt: skip
    counts = [chunk.usage.completion_tokens for chunk in stream if chunk.usage is not None]
    assert counts == [0, 1, 2, 3, 4, 5, 6, 6, 6]


def test_a_completion_from_text_and_from_tokens(client: openai.OpenAI, codec: TextCodec, folder: Path) -> None:
    ids = codec.encode("one two")
    answers = [
        client.completions.create(model=MODEL, prompt=prompt, max_tokens=6, temperature=0)
        for prompt in ("one two", ids, [ids])
    ]
    assert {one.choices[0].text for one in answers} == {codec.decode(expected(folder, ids, 6))}
    assert {one.object for one in answers} == {"text_completion"}


def test_several_prompts_get_a_choice_each(client: openai.OpenAI, codec: TextCodec, folder: Path) -> None:
    prompts = ["one two", "hello"]
    wanted = [codec.decode(expected(folder, codec.encode(prompt), 5)) for prompt in prompts]
    whole = client.completions.create(model=MODEL, prompt=prompts, max_tokens=5, temperature=0)
    assert [choice.text for choice in whole.choices] == wanted
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == sum(len(codec.encode(prompt)) for prompt in prompts)
    assert whole.usage.completion_tokens == 10
    texts, ends = ["", ""], [0, 0]
    for chunk in client.completions.create(model=MODEL, prompt=prompts, max_tokens=5, temperature=0, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
        ends[chunk.choices[0].index] += chunk.choices[0].finish_reason == "length"
    assert texts == wanted
    assert ends == [1, 1]


def test_an_answer_stops_at_a_text(client: openai.OpenAI, codec: TextCodec, tokens: list[int]) -> None:
    text = codec.decode(tokens)
    stop = text[7:9]
    for given in (stop, ["nothing like it", stop]):
        found = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=12, temperature=0, stop=given)
        assert found.choices[0].finish_reason == "stop"
        assert found.choices[0].message.content == text[: text.index(stop)]
        assert found.choices[0].model_dump()["stop_reason"] == stop


def test_a_seed_repeats_and_another_differs(client: openai.OpenAI) -> None:
    def text(seed: int) -> str:
        found = client.chat.completions.create(
            model=MODEL, messages=ASK, max_tokens=20, temperature=1.5, seed=seed, top_p=0.95, extra_body={"top_k": 60}
        )
        return found.choices[0].message.content or ""

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(-2, 3)}) == 5


def test_logprobs_of_a_chat(client: openai.OpenAI, codec: TextCodec, tokens: list[int]) -> None:
    found = client.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=4, temperature=0, logprobs=True, top_logprobs=3
    )
    logprobs = found.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [entry.token for entry in logprobs.content] == [codec.token_text(token) for token in tokens[:4]]
    for entry in logprobs.content:
        assert entry.bytes == list(entry.token.encode())
        assert len(entry.top_logprobs) == 3
        # Greedy: the drawn token is the best one.
        assert entry.top_logprobs[0].token == entry.token
        assert entry.logprob == pytest.approx(entry.top_logprobs[0].logprob)
        assert entry.logprob < 0


def test_logprobs_of_a_completion(client: openai.OpenAI) -> None:
    found = client.completions.create(model=MODEL, prompt="one two", max_tokens=6, temperature=0, logprobs=2)
    logprobs = found.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.top_logprobs is not None
    assert logprobs.text_offset is not None
    assert "".join(logprobs.tokens) == found.choices[0].text
    for token, value, best in zip(logprobs.tokens, logprobs.token_logprobs or [], logprobs.top_logprobs, strict=True):
        assert best[token] == pytest.approx(value)
        assert len(best) == 2
    for start, token in zip(logprobs.text_offset, logprobs.tokens, strict=True):
        assert found.choices[0].text.startswith(token, start)


def test_logprobs_of_a_stream_are_those_of_the_whole(client: openai.OpenAI) -> None:
    given = {"model": MODEL, "messages": ASK, "max_tokens": 4, "temperature": 0, "logprobs": True}
    stream = client.chat.completions.create(**given, stream=True)
    entries = [
        entry for chunk in stream for entry in ((chunk.choices[0].logprobs and chunk.choices[0].logprobs.content) or [])
    ]
    whole = client.chat.completions.create(**given).choices[0].logprobs
    assert [entry.token for entry in entries] == [entry.token for entry in whole.content]
    assert [entry.logprob for entry in entries] == pytest.approx([entry.logprob for entry in whole.content])
    assert all(entry.top_logprobs == [] for entry in entries)


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == MODEL
    assert model.model_dump()["max_model_len"] == CONTEXT
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("other/model")
    assert error.value.code == "model_not_found"


def test_errors_arrive_as_the_clients_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4o", messages=ASK)
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=MODEL, messages=ASK, n=2)
    assert error.value.param == "n"
    assert error.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=MODEL, prompt=prompt_of(300))
    assert long.value.code == "context_length_exceeded"
    assert "256" in long.value.message
    assert "300" in long.value.message


def test_many_at_once_from_the_asynchronous_client(shared: Running, codec: TextCodec, folder: Path) -> None:
    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{shared.url}/v1", api_key="none", timeout=60) as client:

            async def ask(index: int) -> str:
                stream = await client.completions.create(
                    model=MODEL, prompt=[first + index, 4], max_tokens=8, temperature=0, stream=True,
                    extra_body={"priority": index + 1, "slo": {"ttft_s": 1}},
                )  # fmt: skip
                return "".join([chunk.choices[0].text async for chunk in stream])

            return await asyncio.gather(*[ask(index) for index in range(16)])

    first = codec.encode("a")[0]
    answers = asyncio.run(ask_all())
    assert answers == [codec.decode(expected(folder, [first + index, 4], 8)) for index in range(16)]
