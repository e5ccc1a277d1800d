"""How many requests are let in, and how many tokens each may ask for."""

from __future__ import annotations

from runtime.server.errors import CONTEXT_CODE, ApiError, try_again
from runtime.server.fields import ChatFields, SharedFields
from runtime.server.options import ServerOptions


def context_tokens(engine_tokens: int, options: ServerOptions) -> int:
    """Return the most tokens of prompt and answer: what fits, or less when the operator says so."""
    return engine_tokens if options.max_model_len is None else min(engine_tokens, options.max_model_len)


def wanted_tokens(fields: SharedFields, options: ServerOptions) -> int | None:
    """Return the answer tokens that a request names, ``None`` when it names none.

    Raises
    ------
    ApiError
        400 when it asks for more than the operator allows.
    """
    name, wanted = "max_tokens", fields.max_tokens
    if isinstance(fields, ChatFields) and fields.max_completion_tokens is not None:
        name, wanted = "max_completion_tokens", fields.max_completion_tokens
    limit = options.max_answer_tokens
    if wanted is not None and limit is not None and wanted > limit:
        raise ApiError(400, f"{name} is {_short(wanted)}, this server answers with at most {limit} tokens", param=name)
    return wanted


def fitted_tokens(num_prompt: int, wanted: int | None, context: int, options: ServerOptions, param: str) -> int:
    """Return how many tokens an answer may have at most.

    Raises
    ------
    ApiError
        400 with the numbers when the prompt, or the prompt and the wanted answer, don't fit.

    Examples
    --------
    >>> fitted_tokens(62, None, 64, ServerOptions("m"), "prompt")
    2
    """
    if num_prompt >= context:
        raise ApiError(
            400, f"the context holds {context} tokens for prompt and answer; the prompt has {num_prompt}, which leaves"
            " none for an answer", param=param, code=CONTEXT_CODE,
        )  # fmt: skip
    room = context - num_prompt
    if wanted is None:
        caps = (room, options.default_max_tokens, options.max_answer_tokens)
        return min(cap for cap in caps if cap is not None)
    if wanted > room:
        raise ApiError(
            400, f"the context holds {context} tokens for prompt and answer; you asked for"
            f" {_short(num_prompt + wanted)} ({num_prompt} in the prompt, {_short(wanted)} for the answer)",
            param=param, code=CONTEXT_CODE,
        )  # fmt: skip
    return wanted


def check_room(num_waiting: int, num_new: int, options: ServerOptions) -> None:
    """Raise ApiError 429 when so many new requests would make too many that wait for their first token."""
    if num_new > options.max_waiting:
        raise ApiError(
            400, f"found {num_new} prompts, at most {options.max_waiting} requests may wait at once", param="prompt"
        )  # fmt: skip
    if num_waiting + num_new > options.max_waiting:
        raise try_again(
            429, f"{num_waiting} requests wait for their first token, at most {options.max_waiting} may",
            options.retry_after_s,
        )  # fmt: skip


def _short(number: int) -> str:
    return str(number) if number < 10**18 else "a number of more than 18 digits"
