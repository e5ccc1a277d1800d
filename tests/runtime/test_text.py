"""Text to tokens and back, with tokenizers of the kinds that models have."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_folders import metaspace, sentencepiece_like
from transformers import AutoTokenizer

from runtime.text import TextCodec
from runtime.tiny_model import TinyModel, write_tiny_model
from slob_opt.errors import InputError

KINDS = ("bytes", "strips", "keeps", "metaspace")
TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("🙂👩‍👧 é你\n "), max_size=30)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("tokenizers")
    return {
        "bytes": write_tiny_model(base / "bytes"),
        "strips": sentencepiece_like(base / "strips"),
        "keeps": sentencepiece_like(base / "keeps", strips=False),
        "metaspace": metaspace(base / "metaspace"),
    }


@pytest.fixture(scope="module")
def codecs(folders: dict[str, Path]) -> dict[str, TextCodec]:
    return {kind: TextCodec(folder) for kind, folder in folders.items()}


@pytest.fixture(scope="module")
def peers(folders: dict[str, Path]) -> dict[str, Any]:
    """transformers' own tokenizers."""
    return {kind: AutoTokenizer.from_pretrained(folder) for kind, folder in folders.items()}


def streamed(codec: TextCodec, ids: list[int], stop: tuple[str, ...] = ()) -> tuple[str, list[str]]:
    answer = codec.answer(stop)
    parts = [answer.add(token) for token in ids]
    return "".join([*parts, answer.flush()]), parts


def peer_text(peer: Any, ids: list[int]) -> str:
    found: str = peer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return found


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(text=TEXT)
def test_a_text_comes_back_and_no_part_of_it_is_a_broken_character(
    kind: str, text: str, codecs: dict[str, TextCodec], peers: dict[str, Any]
) -> None:
    codec = codecs[kind]
    ids = codec.encode(text)
    assert ids == peers[kind].encode(text)
    found, parts = streamed(codec, ids)
    assert found == codec.decode(ids) == peer_text(peers[kind], ids)
    reserved = ("<|", "<s>", "</s>", "<unk>", "▁")  # special tokens, and the letter that stands for a blank
    if kind != "metaspace" and not any(name in text for name in reserved):  # nor has that vocabulary every character
        assert found == text
        assert "\ufffd" in text or not any("\ufffd" in part for part in parts)


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, 330), max_size=40))
def test_any_tokens_of_a_byte_vocabulary_read_as_transformers_reads_them(
    ids: list[int], codecs: dict[str, TextCodec], peers: dict[str, Any]
) -> None:
    found, _ = streamed(codecs["bytes"], ids)  # up to 319 are known to the model, the others to nobody
    assert found == codecs["bytes"].decode(ids) == peer_text(peers["bytes"], [token for token in ids if token < 320])


@pytest.mark.parametrize("kind", ["strips", "keeps", "metaspace"])
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_tokens_of_other_vocabularies_read_as_transformers_reads_them(
    kind: str, data: st.DataObject, codecs: dict[str, TextCodec], peers: dict[str, Any]
) -> None:
    """Single bytes that are no character excepted: those are told one by one, without harm to their neighbours."""
    peer = peers[kind]
    ids = data.draw(st.lists(st.integers(0, len(peer) - 1), max_size=30))
    found, _ = streamed(codecs[kind], ids)
    assert found == codecs[kind].decode(ids)
    if "\ufffd" not in found:
        assert found == peer_text(peer, ids)


def test_a_character_of_several_tokens_comes_whole(codecs: dict[str, TextCodec]) -> None:
    for kind in ("bytes", "keeps"):
        ids = codecs[kind].encode("🙂!é")
        assert len(ids) == 4 + 1 + 2
        assert streamed(codecs[kind], ids)[1][:5] == ["", "", "", "🙂", "!"]


def test_broken_bytes_are_told_as_soon_as_they_are_certain(codecs: dict[str, TextCodec]) -> None:
    codec = codecs["bytes"]
    smile = codec.encode("🙂")
    a = codec.encode("a")[0]
    assert streamed(codec, [*smile[:2], a])[1] == ["", "", "\ufffda"]
    assert streamed(codec, [smile[1], a])[1] == ["\ufffd", "a"]
    assert streamed(codec, smile[:3])[0] == "\ufffd"  # the answer ended inside the character


def test_special_tokens_are_no_text_but_have_names(codecs: dict[str, TextCodec]) -> None:
    codec = codecs["bytes"]
    assert codec.encode("<|im_end|>") == [2]
    assert codec.decode([2, *codec.encode("a"), 2]) == "a"
    assert (codec.token_text(2), codec.token_bytes(codec.encode("🙂")[0])) == ("<|im_end|>", b"\xf0")
    assert codec.token_text(codec.encode("🙂")[0]) == "\ufffd"
    assert codec.token_text(5000) == ""


def test_spaces_in_front_of_words_stay(codecs: dict[str, TextCodec]) -> None:
    codec = codecs["strips"]
    ids = codec.encode("the quick fox")
    assert [codec.token_text(token) for token in ids] == [" the", " quick", " fox"]
    assert streamed(codec, ids)[1] == ["the", " quick", " fox"]  # as transformers decodes an answer
    assert streamed(codec, [1, *ids])[1] == ["", "the", " quick", " fox"]  # a special token isn't the first text


def test_stop_texts_span_tokens_and_what_is_before_them_is_kept(codecs: dict[str, TextCodec]) -> None:
    codec = codecs["bytes"]
    ids = codec.encode("one\n\nUser: two")
    answer = codec.answer(("\n\nUser:", "###"))
    assert "".join(answer.add(token) for token in ids) == "one"
    assert (answer.stop, answer.flush(), answer.add(ids[0])) == ("\n\nUser:", "", "")


def test_what_only_looked_like_a_stop_text_comes_when_that_is_certain(codecs: dict[str, TextCodec]) -> None:
    codec = codecs["bytes"]
    answer = codec.answer(("\n\nUser:",))
    parts = [answer.add(token) for token in codec.encode("one\n\nUs we")]
    assert any(part.startswith("\n\nUs ") for part in parts)
    assert "".join(parts) == "one\n\nUs we"
    assert answer.stop is None
    held = codec.answer(("END",))
    assert [held.add(token) for token in codec.encode("EN")] == ["", ""]
    assert held.flush() == "EN"


def test_a_stop_text_may_begin_inside_a_token(codecs: dict[str, TextCodec]) -> None:
    codec = codecs["bytes"]
    assert codec.token_text(codec.encode("th")[0]) == "th"
    answer = codec.answer(("hi",))
    assert [answer.add(token) for token in codec.encode("th") + codec.encode("i")] == ["t", ""]
    assert answer.stop == "hi"


def test_an_empty_stop_text_is_refused(codecs: dict[str, TextCodec]) -> None:
    with pytest.raises(InputError, match="empty stop text"):
        codecs["bytes"].answer(("",))


def test_a_chat_is_written_as_the_template_says(codecs: dict[str, TextCodec], peers: dict[str, Any]) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]},
        {"role": "assistant", "content": None},
    ]
    ids = codecs["bytes"].chat(messages)
    assert peers["bytes"].decode(ids) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ids[0] == 1
    assert codecs["bytes"].has_chat_template


def test_without_a_template_there_is_no_chat(codecs: dict[str, TextCodec]) -> None:
    assert not codecs["strips"].has_chat_template
    with pytest.raises(InputError, match=r"no chat template.*completion.*chat_template\.jinja"):
        codecs["strips"].chat([{"role": "user", "content": "Hello"}])


def test_what_a_template_refuses_is_told(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model")
    (folder / "chat_template.jinja").write_text(
        "{% if messages[0]['role'] != 'user' %}{{ raise_exception('roles must alternate') }}{% endif %}"
        "{{ messages[0]['content'] + messages[0]['name'] }}"
    )
    codec = TextCodec(folder)
    for message, told in (({"role": "system", "content": "x"}, "roles must alternate"), ({"role": "user"}, "name")):
        with pytest.raises(InputError, match=f"chat template refuses.*{told}"):
            codec.chat([message])
    with pytest.raises(InputError, match="isn't text"):
        codec.chat([{"role": "user", "content": [{"type": "image_url"}]}])


def test_half_a_surrogate_pair_is_refused(codecs: dict[str, TextCodec]) -> None:
    with pytest.raises(InputError, match=r"character 2 .*U\+D800"):
        codecs["bytes"].encode("ab\ud800")
    with pytest.raises(InputError, match="surrogate"):
        codecs["bytes"].chat([{"role": "user", "content": "\udfff"}])


def test_ends_are_those_of_the_generation_config_and_the_tokenizer(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", TinyModel(vocab_size=400))
    assert (TextCodec(folder).eos_ids, TextCodec(folder).vocab_size) == ({2}, 400)
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    assert TextCodec(folder).eos_ids == {2, 7, 8}
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": 9}))
    assert TextCodec(folder).eos_ids == {2, 9}


def test_settings_of_a_tokenizer_file_never_cut_or_fill_a_prompt(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model")
    data = json.loads((folder / "tokenizer.json").read_text())
    data["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    data["padding"] = {
        "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(data))
    codec = TextCodec(folder)
    assert codec.decode(codec.encode("a long prompt")) == "a long prompt"
    assert 0 not in codec.encode("a long prompt")


def test_a_folder_without_a_readable_tokenizer_is_refused_with_its_file(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model")
    path = folder / "tokenizer.json"
    path.write_text(path.read_text()[:500])
    with pytest.raises(InputError, match="the tokenizer can't be read") as damaged:
        TextCodec(folder)
    assert damaged.value.file == str(folder)
    path.unlink()
    with pytest.raises(InputError, match="the file is missing") as missing:
        TextCodec(folder)
    assert missing.value.file == str(path)


def test_threads_share_a_codec(codecs: dict[str, TextCodec]) -> None:
    codec, failures = codecs["bytes"], []

    def work(seed: int) -> None:
        for index in range(100):
            text = f"{seed} naïve 🙂 {index}"
            if codec.decode(codec.encode(text)) != text or not codec.chat([{"role": "user", "content": text}]):
                failures.append(text)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
