"""The fields of a request body: which are read, which are harmless, and which are refused since we can't do them."""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runtime.server.errors import ApiError

MAX_STOPS = 4
MAX_STOP_CHARS = 1024

Number = Annotated[float, Field(allow_inf_nan=False)]
Weight = Annotated[float, Field(allow_inf_nan=False, ge=1e-6, le=1e6)]
Tokens = Annotated[int, Field(ge=1)]


class SloFields(BaseModel):
    """Targets of one request, seconds."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ttft_s: Weight | None = None
    tpot_s: Weight | None = None


class StreamFields(BaseModel):
    """``stream_options``."""

    model_config = ConfigDict(extra="ignore", strict=True)

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SharedFields(BaseModel):
    """What both endpoints read; fields that are ``None`` count as absent."""

    model_config = ConfigDict(extra="ignore", strict=True)

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamFields | None = None
    stop: str | list[str] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    max_tokens: Tokens | None = None
    ignore_eos: bool | None = None
    priority: Weight | None = None
    slo: SloFields | None = None
    user: Annotated[str, Field(max_length=512)] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop texts."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def usage_options(self) -> StreamFields:
        """The stream options, with defaults for what is absent."""
        return self.stream_options or StreamFields()


class ChatFields(SharedFields):
    """``/v1/chat/completions``."""

    messages: list[Any]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def num_logprobs(self) -> int | None:
        """Best tokens to tell, ``None`` when no log-probabilities are asked for."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionFields(SharedFields):
    """``/v1/completions``."""

    prompt: Any
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


_OFF: tuple[Any, ...] = (False,)
_REFUSED_BY_BOTH: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "min_p": (0,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "use_beam_search": _OFF,
    "prompt_logprobs": (),
    "truncate_prompt_tokens": (),
    "include_stop_str_in_output": _OFF,
    "skip_special_tokens": (True,),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "response_format": ({"type": "text"},),
}
_REFUSED_BY_CHAT: dict[str, tuple[Any, ...]] = {
    **_REFUSED_BY_BOTH,
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "echo": _OFF,
    "continue_final_message": _OFF,
    "add_generation_prompt": (True,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
}
_REFUSED_BY_COMPLETIONS: dict[str, tuple[Any, ...]] = {**_REFUSED_BY_BOTH, "suffix": ("",), "echo": _OFF}
"""Fields that change the answer's meaning and that we can't do, with values that ask for nothing."""

_Fields = TypeVar("_Fields", bound=SharedFields)


def read_chat(body: dict[str, Any]) -> ChatFields:
    """Return the fields of a chat request; raises ApiError 400 for what is wrong or can't be done."""
    fields = _read(ChatFields, body, _REFUSED_BY_CHAT)
    if fields.top_logprobs is not None and not fields.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
    return fields


def read_completion(body: dict[str, Any]) -> CompletionFields:
    """Return the fields of a completion request; raises ApiError 400 for what is wrong or can't be done."""
    return _read(CompletionFields, body, _REFUSED_BY_COMPLETIONS)


def _read(kind: type[_Fields], body: dict[str, Any], refused: dict[str, tuple[Any, ...]]) -> _Fields:
    for name, neutral in refused.items():
        value = body.get(name)
        if value is not None and not any(_is_same(value, one) for one in neutral):
            raise ApiError(
                400, f"{name} is {_shown(value)}, which this server can't do{_instead(neutral)}",
                param=name, code="unsupported_parameter",
            )  # fmt: skip
    try:
        fields = kind.model_validate(body)
    except ValidationError as error:
        raise _bad_field(error) from None
    _check_stops(fields.stops)
    if fields.stream_options is not None and not fields.stream:
        raise ApiError(400, "stream_options needs stream to be true", param="stream_options")
    return fields


def _is_same(value: Any, neutral: Any) -> bool:
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _instead(neutral: tuple[Any, ...]) -> str:
    return f"; expected {' or '.join(_shown(one) for one in neutral)}, or nothing" if neutral else ""


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _check_stops(stops: tuple[str, ...]) -> None:
    if len(stops) > MAX_STOPS:
        raise ApiError(400, f"found {len(stops)} stop texts, expected at most {MAX_STOPS}", param="stop")
    for stop in stops:
        if not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise ApiError(
                400, f"found a stop text of {len(stop)} characters, expected 1 to {MAX_STOP_CHARS}", param="stop"
            )


def _bad_field(error: ValidationError) -> ApiError:
    """Return the first thing that is wrong, by the name of its field."""
    first = error.errors(include_url=False, include_context=False)[0]
    name = str(first["loc"][0]) if first["loc"] else None
    if first["type"] == "missing":
        return ApiError(400, f"the field {name} is missing", param=name, code="missing_required_parameter")
    # Places inside unions name the branch too, which tells clients nothing.
    inner = [str(part) for part in first["loc"][1:] if not (isinstance(part, str) and "[" in part)]
    where = ".".join([name or "body", *[part for part in inner if part not in ("str", "float", "int")]])
    return ApiError(400, f"{where}: {first['msg']}, found {_shown(first['input'])}", param=name)
