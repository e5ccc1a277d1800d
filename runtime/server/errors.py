"""Errors as clients of OpenAI's interface expect them: a status and ``{"error": {message, type, param, code}}``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi.responses import JSONResponse

from runtime.generation import RequestRefused

_TYPES = {
    401: "authentication_error",
    429: "rate_limit_error",
    500: "server_error",
    502: "server_error",
    503: "service_unavailable_error",
}
_CODES = {
    401: "invalid_api_key",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
    429: "rate_limit_exceeded",
    500: "internal_error",
    503: "unavailable",
}
_REFUSED_STATUS = {"too_long": 400, "invalid": 400, "busy": 429, "unavailable": 503}

CONTEXT_CODE = "context_length_exceeded"
"""Of a prompt that is too long, alone or with the answer it asks for."""


class ApiError(Exception):
    """A request that isn't answered.

    Attributes
    ----------
    status
        Of HTTP.
    message
        For people.
    param
        The field that is wrong; ``None`` when the whole request is meant.
    code
        For programs; ``None`` where the type says it all.
    headers
        Added to the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param
        self.code = code if code is not None else _CODES.get(status)
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """Return what the client gets."""
        kind = _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """Return the whole response."""
        return JSONResponse(self.body(), self.status, headers=self.headers)


def try_again(status: int, message: str, retry_after_s: int) -> ApiError:
    """Return an error that tells the client when to come again."""
    return ApiError(status, message, headers={"Retry-After": str(retry_after_s)})


def of_refusal(error: RequestRefused, retry_after_s: int) -> ApiError:
    """Return what a client is told when the engine doesn't take its request."""
    status = _REFUSED_STATUS.get(error.kind, 500)
    if status >= 429:
        return try_again(status, str(error), retry_after_s)
    return ApiError(status, str(error), code=CONTEXT_CODE if error.kind == "too_long" else None)
