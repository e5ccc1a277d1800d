"""The web application: routes, and errors in OpenAI's shape whatever goes wrong."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from runtime.engine import Engine
from runtime.server.body import check_key, read_object, request_label
from runtime.server.errors import ApiError, try_again
from runtime.server.fields import SharedFields, read_chat, read_completion
from runtime.server.frontend import Call, Frontend
from runtime.server.options import ServerOptions
from runtime.server.page import PAGE_HEADERS, page_html, status_body

_log = logging.getLogger(__name__)


def make_app(engine: Engine, options: ServerOptions) -> FastAPI:
    """Return the application that serves an engine; its :class:`Frontend` is ``app.state.frontend``.

    Parameters
    ----------
    engine
        Started; the application doesn't close it.
    options
        How it's served.
    """
    frontend = Frontend(engine, options)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        frontend.close()

    app = FastAPI(title="SLoB", lifespan=life, openapi_url=None, redirect_slashes=False)
    app.state.frontend = frontend
    app.include_router(_openai_routes(frontend))
    app.include_router(_operator_routes(frontend))
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_crash)
    return app


def _openai_routes(frontend: Frontend) -> APIRouter:
    options = frontend.options

    async def check(request: Request) -> None:
        check_key(request, options.api_key)

    router = APIRouter(prefix="/v1", dependencies=[Depends(check)])

    @router.post("/chat/completions")
    async def chat(request: Request) -> Response:
        return await _answered(frontend, request, read_chat, frontend.chat)

    @router.post("/completions")
    async def complete(request: Request) -> Response:
        return await _answered(frontend, request, read_completion, frontend.complete)

    @router.get("/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_card(frontend)]}

    @router.get("/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        _check_model(name, options)
        return _card(frontend)

    return router


async def _answered(
    frontend: Frontend,
    request: Request,
    read: Callable[[dict[str, Any]], Any],
    answer: Callable[[Call, Any], Awaitable[Response]],
) -> Response:
    """Read a request's body and have it answered."""
    arrival_ns = time.monotonic_ns()
    label = request_label(request)
    request.state.request_id = label or uuid.uuid4().hex
    if frontend.is_draining:
        frontend.metrics.refused("unavailable")
        raise try_again(
            503, "the server is going down and takes no more requests", frontend.options.retry_after_s
        )  # fmt: skip
    body = await read_object(request, frontend.options)
    fields: SharedFields = read(body)
    if fields.model is not None:
        _check_model(fields.model, frontend.options)
    return await answer(Call(request, label, _id_header(request), arrival_ns), fields)


def _check_model(name: str, options: ServerOptions) -> None:
    if name != options.model_name:
        raise ApiError(
            404, f"the model {name[:200]!r} isn't served here, {options.model_name!r} is",
            param="model", code="model_not_found",
        )  # fmt: skip


def _card(frontend: Frontend) -> dict[str, Any]:
    return {
        "id": frontend.options.model_name,
        "object": "model",
        "created": frontend.created,
        "owned_by": "slob",
        "max_model_len": frontend.context_tokens,
    }


def _operator_routes(frontend: Frontend) -> APIRouter:
    router = APIRouter()

    @router.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> Response:
        status, is_fresh = await frontend.status()
        why = None
        if status is None or not is_fresh:
            why = "the engine is busy and doesn't answer"
        elif not status.is_up:
            why = status.faults[0] if status.faults else "no pipeline is up"
        elif frontend.is_draining or status.is_draining:
            why = "the server is going down"
        if why is not None:
            raise try_again(503, why, frontend.options.retry_after_s)
        return JSONResponse({"status": "ok"})

    @router.get("/metrics")
    async def metrics() -> Response:
        status, _ = await frontend.status()
        text = frontend.metrics.text(status, frontend.exchange.num_live)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @router.get("/status.json")
    async def status() -> Response:
        found, is_fresh = await frontend.status()
        return JSONResponse(status_body(frontend, found, is_fresh=is_fresh), headers={"Cache-Control": "no-store"})

    @router.api_route("/", methods=["GET", "HEAD"])
    async def page() -> Response:
        return HTMLResponse(page_html(), headers=PAGE_HEADERS)

    return router


def _id_header(request: Request) -> dict[str, str]:
    label = getattr(request.state, "request_id", None)
    return {} if label is None else {"X-Request-Id": label}


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    response = error.response()
    response.headers.update(_id_header(request))
    return response


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path[:200]}"
    messages = {404: f"there is nothing at {where}", 405: f"{where} isn't possible, only {_allowed(error)}"}
    message = messages.get(error.status_code, HTTPStatus(error.status_code).phrase)
    return ApiError(error.status_code, message, headers=error.headers).response()


def _allowed(error: HTTPException) -> str:
    return (error.headers or {}).get("Allow", "another method")


async def _on_disconnect(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _on_crash(request: Request, error: Exception) -> Response:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return ApiError(500, "the server made a mistake; its log tells more", headers=_id_header(request)).response()
