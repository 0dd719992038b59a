"""Trace context in event headers: who appends inside an OpenTelemetry span leaves word of it for who reads.

    with tracer.start_as_current_span("checkout"):
        topic.append("placed", order)                      # headers: traceparent (and tracestate)

    with tracer.start_as_current_span("bill", context=penstock.tracing.context_of(event)):
        ...                                                # the same trace goes on

Nothing here needs OpenTelemetry: a caller who has a span has imported it, and only then is it asked.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.events import Event

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"


def trace_headers() -> dict[str, str] | None:
    """The caller's trace context as headers (W3C Trace Context); None outside a span."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    try:
        context = trace.get_current_span().get_span_context()
    except AttributeError:  # half imported, by another thread
        return None
    if not context.is_valid:
        return None
    headers = {TRACEPARENT: f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"}
    if context.trace_state:
        headers[TRACESTATE] = context.trace_state.to_header()
    return headers


def with_trace(headers: Mapping[str, str] | None, trace: dict[str, str]) -> dict[str, str]:
    """Headers with a trace context, unless they bring their own."""
    if headers is None:
        return trace
    return dict(headers) if TRACEPARENT in headers else {**trace, **headers}


def context_of(event: Event) -> Any:
    """The OpenTelemetry context an event was appended in, to start a span under; an empty one when it has none."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract(dict(event.headers))
