"""From prompts to tokens: the model's own template, or a clear refusal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from runtime.server.errors import ApiError
from runtime.server.prompts import chat_messages, chat_tokens, completion_prompts, prompt_tokens
from runtime.text import TextCodec


@pytest.fixture(scope="module")
def codec(folder: Path) -> TextCodec:
    return TextCodec(folder)


def test_parts_are_joined_and_developers_are_the_system(codec: TextCodec) -> None:
    parts = [{"type": "text", "text": "Hello, "}, {"type": "text", "text": "you."}]
    given = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts, "name": "ann"}]
    plain = chat_messages(given)
    assert plain == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello, you."}]
    assert list(chat_tokens(codec, plain)) == codec.chat(plain)


def test_an_assistant_may_have_said_nothing() -> None:
    assert chat_messages([{"role": "assistant", "content": None}]) == [{"role": "assistant", "content": ""}]


def test_a_model_without_template_can_not_chat_and_says_so(folder: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare)
    (bare / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((bare / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (bare / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ApiError, match="no chat template") as error:
        chat_tokens(TextCodec(bare), [{"role": "user", "content": "hello"}])
    assert error.value.status == 400
    assert str(bare) not in error.value.message  # where the model lies is no client's business


@pytest.mark.parametrize(
    ("prompt", "found"),
    [
        ("ab", ["ab"]),
        ([5, 6], [(5, 6)]),
        (["ab", "c"], ["ab", "c"]),
        ([[5], [6, 7]], [(5,), (6, 7)]),
        (["ab", [5]], ["ab", (5,)]),
    ],
)
def test_all_forms_of_a_prompt(codec: TextCodec, prompt: object, found: object) -> None:
    assert completion_prompts(prompt, codec, 4) == found


def test_tokens_stay_and_text_is_encoded(codec: TextCodec) -> None:
    assert prompt_tokens(codec, (5, 6)) == (5, 6)
    assert prompt_tokens(codec, "one two") == tuple(codec.encode("one two"))
