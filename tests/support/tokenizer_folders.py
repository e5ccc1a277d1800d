"""Tokenizers of the kinds that models have, as folders."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

WORDS = ["▁", "the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "naïve", "Straße"]
SPECIAL = ("<unk>", "<s>", "</s>")


def save(folder: Path, tokenizer: Tokenizer, **more: object) -> Path:
    """Write a tokenizer, and what else a codec reads."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "bos_token": "<s>", **more}
    (folder / "tokenizer_config.json").write_text(json.dumps(told), encoding="utf-8")
    return folder


def sentencepiece_like(folder: Path, *, strips: bool = True) -> Path:
    """Write a tokenizer as Llama 2 (`strips`) and Gemma have it: words with a bar for the blank, bytes for the rest."""
    letters = sorted({letter for word in WORDS for letter in word} | set("abcdefghijklmnopqrstuvwxyz .,"))
    vocab = {name: index for index, name in enumerate(SPECIAL)}
    for name in (*(f"<0x{byte:02X}>" for byte in range(256)), *letters):
        vocab.setdefault(name, len(vocab))
    merges = []
    for word in WORDS[1:]:
        for start in ("▁", ""):
            done = (start + word)[0]
            for letter in (start + word)[1:]:
                if done + letter not in vocab:
                    merges.append((done, letter))
                    vocab[done + letter] = len(vocab)
                done += letter
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if strips else replace
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strips else steps)
    tokenizer.add_special_tokens(list(SPECIAL))
    return save(folder, tokenizer)


def metaspace(folder: Path) -> Path:
    """Write a Unigram tokenizer with the decoder that T5-like vocabularies have."""
    pieces = [*SPECIAL, "▁", *(f"▁{word}" for word in WORDS[1:]), *"abcdefghijklmnopqrstuvwxyz"]
    tokenizer = Tokenizer(models.Unigram([(piece, -float(index)) for index, piece in enumerate(pieces)], 0, False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(list(SPECIAL))
    return save(folder, tokenizer)
