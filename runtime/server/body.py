"""Reading a request's body and head: size, time, UTF-8, JSON, key, label."""

from __future__ import annotations

import asyncio
import hmac
import json
from typing import Any, NoReturn

from fastapi import Request

from runtime.server.errors import ApiError
from runtime.server.options import ServerOptions

_MAX_LABEL = 128
_MAX_DISCARDED = 8
"""Of a body that is too large so many times the limit is read and thrown away, so that the client sees our answer."""


async def read_object(request: Request, options: ServerOptions) -> dict[str, Any]:
    """Return the JSON object that a request carries; raises ApiError 400, 408 or 413."""
    try:
        async with asyncio.timeout(options.body_timeout_s):
            raw = await _read_bytes(request, options.max_body_bytes)
    except TimeoutError:
        raise ApiError(
            408, f"the body didn't come within {options.body_timeout_s:g} s", headers={"Connection": "close"}
        ) from None
    return parse_object(raw)


async def _read_bytes(request: Request, limit: int) -> bytes:
    body, size = bytearray(), 0
    async for piece in request.stream():
        size += len(piece)
        if size <= limit:
            body += piece
        elif size > _MAX_DISCARDED * limit:
            break
    if size > limit:
        raise ApiError(413, f"the body is larger than {limit} bytes", headers={"Connection": "close"})
    return bytes(body)


def parse_object(raw: bytes) -> dict[str, Any]:
    """Return the JSON object in these bytes; raises ApiError 400 for anything else.

    Examples
    --------
    >>> parse_object(b'{"stream": true}')
    {'stream': True}
    """
    if not raw.strip():
        raise ApiError(400, "the body is empty, expected a JSON object")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body isn't UTF-8: byte {error.start} is wrong") from None
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair isn't text
    except UnicodeEncodeError:
        raise ApiError(400, "the body has half of a surrogate pair, expected whole characters") from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None
    except ValueError as error:  # JSONDecodeError, and integers of thousands of digits
        raise ApiError(400, f"the body isn't valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ApiError(400, f"the body is a JSON {_KINDS[type(value)]}, expected an object")
    return value


_KINDS = {list: "array", str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def check_key(request: Request, key: str | None) -> None:
    """Raise ApiError 401 unless the request shows the key; takes as long whatever part of it is right."""
    if key is None:
        return
    shown = dict(request.scope["headers"]).get(b"authorization", b"")
    scheme, _, token = shown.partition(b" ")
    if not hmac.compare_digest(token.strip(), key.encode()) or scheme.lower() != b"bearer":
        what = "an API key is needed" if not shown else "the API key is wrong"
        raise ApiError(
            401, f"{what}, expected as header Authorization: Bearer KEY", headers={"WWW-Authenticate": "Bearer"}
        )


def request_label(request: Request) -> str | None:
    """Return what the client calls its request in the header, ``None`` when it is absent or can't be shown."""
    label = request.headers.get("x-request-id", "").strip()
    return label[:_MAX_LABEL] if label and label.isascii() and label.isprintable() else None
