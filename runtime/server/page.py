"""The status page and the figures it shows."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Any

from runtime.generation import EngineStatus, PipelineStatus, RequestRecord
from runtime.server.status_metrics import kv_usage

if TYPE_CHECKING:
    from runtime.server.frontend import Frontend

_NS = 1e9

PAGE_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self';"
        " img-src data:; frame-ancestors 'none'; base-uri 'none'"
    ),
}
"""The page needs nothing from elsewhere, and may not get it."""


def page_html() -> str:
    """Return the page, which reads ``status.json``."""
    return resources.files("runtime.server").joinpath("status.html").read_text(encoding="utf-8")


def status_body(frontend: Frontend, status: EngineStatus | None, *, is_fresh: bool) -> dict[str, Any]:
    """Return what the page shows; of the engine nothing before its first status."""
    options = frontend.options
    body: dict[str, Any] = {
        "model": options.model_name,
        "max_model_len": frontend.context_tokens,
        "plan_gap": options.plan_gap,
        "plan_note": options.plan_note,
        "is_fresh": is_fresh,
        "is_draining": frontend.is_draining,
        "pending": frontend.exchange.num_live,
        "max_waiting": options.max_waiting,
        "prompt_tokens": frontend.metrics.num_prompt,
        "generated_tokens": frontend.metrics.num_generated,
        "engine": None,
    }
    if status is not None:
        # Without a key anybody may see the page; with one, whoever has none shouldn't learn who asks.
        body["engine"] = _engine(status, shows_labels=options.api_key is None)
    return body


def _engine(status: EngineStatus, *, shows_labels: bool) -> dict[str, Any]:
    return {
        "is_up": status.is_up,
        "uptime_s": (status.now_ns - status.started_ns) / _NS,
        "policy": status.policy,
        "dispatcher": status.dispatcher,
        "num_preempted": status.num_preempted,
        "num_finished": {reason.value: count for reason, count in status.num_finished.items()},
        "kv_usage": kv_usage(status),
        "pipelines": [_pipeline(one) for one in status.pipelines],
        "latest": [_record(one, status.now_ns, shows_label=shows_labels) for one in status.latest],
        "faults": list(status.faults),
    }


def _pipeline(one: PipelineStatus) -> dict[str, Any]:
    return {
        "is_up": one.is_up,
        "running": one.running,
        "waiting": one.waiting,
        "kv_blocks": one.kv_blocks,
        "used_blocks": one.kv_blocks - one.free_blocks,
        "stages": [
            {"device": device, "first": first, "end": end, "busy_s": busy_s, "emulated": emulated}
            for (device, first, end), busy_s, emulated in zip(one.stages, one.busy_s, one.emulated, strict=True)
        ],
    }


def _record(one: RequestRecord, now_ns: int, *, shows_label: bool) -> dict[str, Any]:
    tpot_s = None
    if one.first_ns is not None and one.end_ns is not None and one.num_generated > 1:
        tpot_s = (one.end_ns - one.first_ns) / _NS / (one.num_generated - 1)
    return {
        "number": one.number,
        "label": one.label if shows_label else None,
        "pipeline": one.pipeline,
        "prompt": one.num_prompt,
        "generated": one.num_generated,
        "reason": None if one.reason is None else one.reason.value,
        "ttft_s": None if one.first_ns is None else (one.first_ns - one.arrival_ns) / _NS,
        "tpot_s": tpot_s,
        "e2e_s": None if one.end_ns is None else (one.end_ns - one.arrival_ns) / _NS,
        "ago_s": None if one.end_ns is None else (now_ns - one.end_ns) / _NS,
        "satisfaction": one.satisfaction,
    }
