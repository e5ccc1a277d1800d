"""From the prompt of a request to token ids."""

from __future__ import annotations

from typing import Any

from runtime.live_request import Codec
from runtime.server.errors import ApiError
from slob_opt.errors import InputError

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def chat_messages(messages: list[Any]) -> list[dict[str, str]]:
    """Return messages with a role and a text each; raises ApiError 400 for what we can't read.

    Examples
    --------
    >>> chat_messages([{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}])
    [{'role': 'system', 'content': 'Be brief.'}]
    """
    if not messages:
        raise ApiError(400, "messages is empty, expected at least one message", param="messages")
    return [_message(message, f"messages.{place}") for place, message in enumerate(messages)]


def _message(message: Any, where: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise _wrong(where, f"expected an object with role and content, found {_kind(message)}")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise _wrong(f"{where}.role", f"found {role!r}, expected {', '.join(_ROLES)} (there are no tools here)")
    for name in ("tool_calls", "function_call", "audio"):
        if message.get(name):
            raise _wrong(f"{where}.{name}", "this server can't do it", code="unsupported_parameter")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part(part, f"{where}.content.{place}") for place, part in enumerate(content))
    if content is None and role == "assistant":
        content = ""
    if not isinstance(content, str):
        raise _wrong(f"{where}.content", f"expected a text or a list of text parts, found {_kind(content)}")
    return {"role": _ROLES[role], "content": content}


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise _wrong(where, f"expected an object with a type, found {_kind(part)}")
    if part["type"] != "text":
        raise _wrong(
            f"{where}.type", f"found {part['type'][:60]!r}, this server reads text only", code="unsupported_parameter"
        )
    if not isinstance(part.get("text"), str):
        raise _wrong(f"{where}.text", f"expected a text, found {_kind(part.get('text'))}")
    return str(part["text"])


def chat_tokens(codec: Codec, messages: list[dict[str, str]]) -> tuple[int, ...]:
    """Return the tokens of a conversation; raises ApiError 400 when the model's template can't express it."""
    try:
        return tuple(codec.chat(messages))
    except InputError as error:
        raise ApiError(400, error.message, param="messages") from error


def completion_prompts(prompt: Any, codec: Codec, max_prompts: int) -> list[str | tuple[int, ...]]:
    """Return the prompts of a completion request, each a text or token ids; raises ApiError 400 for what is neither."""
    if isinstance(prompt, str) or _is_ids(prompt):
        prompts = [prompt]
    elif isinstance(prompt, list) and prompt and all(isinstance(one, str) or _is_ids(one) for one in prompt):
        prompts = prompt
    else:
        found = "an empty array" if prompt == [] else _kind(prompt)
        raise _wrong("prompt", f"expected a text, token ids, or an array of either, found {found}")
    if len(prompts) > max_prompts:
        raise _wrong("prompt", f"found {len(prompts)} prompts, at most {max_prompts} are answered at once")
    return [one if isinstance(one, str) else _checked_ids(one, codec.vocab_size) for one in prompts]


def prompt_tokens(codec: Codec, prompt: str | tuple[int, ...]) -> tuple[int, ...]:
    """Return the tokens of one prompt of a completion request; raises ApiError 400 when there are none."""
    tokens = prompt if isinstance(prompt, tuple) else tuple(codec.encode(prompt))
    if not tokens:
        raise _wrong("prompt", "is empty, expected at least one token")
    return tokens


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)


def _checked_ids(ids: list[int], vocab_size: int) -> tuple[int, ...]:
    for place, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            raise _wrong("prompt", f"token {_short(token)} at place {place}, expected 0 to {vocab_size - 1}")
    return tuple(ids)


def _short(number: int) -> str:
    return str(number) if abs(number) < 10**18 else "of more than 18 digits"


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    names = {dict: "an object", list: "an array", str: "a text", bool: "a boolean", int: "a number", float: "a number"}
    return names[type(value)]


def _wrong(where: str, what: str, *, code: str | None = None) -> ApiError:
    return ApiError(400, f"{where}: {what}", param=where.split(".", 1)[0], code=code)
