"""Bytes of tokens."""

from __future__ import annotations

from tokenizers.pre_tokenizers import ByteLevel

from runtime.token_pieces import byte_letters


def test_letters_of_bytes_are_those_of_the_tokenizer_library() -> None:
    letters = byte_letters()
    assert sorted(letters) == list(range(256))
    assert set(letters.values()) == set(ByteLevel.alphabet())
    text = "".join(map(chr, range(0x2000)))
    found = "".join(piece for piece, _ in ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text))
    assert found == "".join(letters[byte] for byte in text.encode())
