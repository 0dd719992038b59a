"""OpenTelemetry: trace context in event headers, and spans of what penstock does.

    with tracer.start_as_current_span("checkout"):
        topic.append("placed", order)                      # headers: traceparent (and tracestate)

    with tracer.start_as_current_span("bill", context=penstock.tracing.context_of(event)):
        ...                                                # the same trace goes on

    send orders          append, append_many, push, push_many: until what was sent is durable
    receive emails       a take that found something: from the call to the delivery, linked to what it found
    process emails       a handler, in the trace of the message it handles

Spans exist only when the application has set a tracer provider; nothing is imported before. Callers themselves look for
`opentelemetry.trace` among the imported modules, so a program without tracing pays for no call.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextvars import Token
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer
    from opentelemetry.util.types import AttributeValue

    from penstock.core.events import Event

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"


def trace_headers() -> dict[str, str] | None:
    """Returns the caller's trace context as headers (W3C Trace Context); None outside a span."""
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
    """Returns headers with a trace context, unless they already have a trace context."""
    if headers is None:
        return trace
    return dict(headers) if TRACEPARENT in headers else {**trace, **headers}


def context_of(event: Event) -> Any:
    """Returns the OpenTelemetry context of an event's append, as the parent of a span; an empty context for an event
    without one.
    """
    return _context(event.headers)


# ── Spans ──


MOST_LINKS = 100
"""The most messages of one take to which its span is linked."""


class ActiveSpan:
    """A span that is current until it ends."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: Span) -> None:
        from opentelemetry import context, trace

        self._span = span
        self._token: Token[Context] = context.attach(trace.set_span_in_context(span))

    def end(self) -> None:
        """Ends the span, with the current exception, if there is one."""
        from opentelemetry import context
        from opentelemetry.trace import Status, StatusCode

        context.detach(self._token)
        error = sys.exception()
        if error is not None:
            self.fail(error)
        else:
            self._span.set_status(Status(StatusCode.OK))
        self._span.end()

    def fail(self, error: BaseException) -> None:
        """Records an error in the span."""
        from opentelemetry.trace import Status, StatusCode

        self._span.record_exception(error)
        self._span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))


def sending(
    destination: str, operation: str, count: int | None = None, headers: Mapping[str, str] | None = None
) -> ActiveSpan | None:
    """Starts the span of a send, which becomes current; returns None without tracing.

    A trace context in the headers is the span's parent.
    """
    tracer = _tracer()
    if tracer is None:
        return None
    from opentelemetry.trace import SpanKind

    about = _span_attributes(destination, operation, "send", count)
    parent = _context(headers) if headers and TRACEPARENT in headers else None
    return ActiveSpan(
        tracer.start_span(f"send {destination}", context=parent, kind=SpanKind.PRODUCER, attributes=about)
    )


def received(destination: str, events: Sequence[Event], began_ns: int) -> None:
    """Records the span of a take that found messages, linked to the spans that sent them."""
    tracer = _tracer()
    if tracer is None:
        return
    from opentelemetry import trace

    links = []
    for event in events[:MOST_LINKS]:
        context = trace.get_current_span(_context(event.headers)).get_span_context()
        if context.is_valid:
            links.append(trace.Link(context))
    about = _span_attributes(destination, "take", "receive", len(events))
    name, kind = f"receive {destination}", trace.SpanKind.CLIENT
    tracer.start_span(name, kind=kind, attributes=about, links=links, start_time=began_ns).end()


def handling(destination: str, event: Event, attempt: int | None = None) -> ActiveSpan | None:
    """Starts the span of a handler, in the trace of its event; the span becomes current.

    Returns None without tracing.
    """
    tracer = _tracer()
    if tracer is None:
        return None
    from opentelemetry.trace import SpanKind

    about = _span_attributes(destination, "handle", "process", None)
    about["messaging.message.id"] = event.id
    about["penstock.position"] = event.seq
    if attempt is not None:
        about["penstock.attempt"] = attempt
    name, parent = f"process {destination}", _context(event.headers)
    return ActiveSpan(tracer.start_span(name, context=parent, kind=SpanKind.CONSUMER, attributes=about))


def _tracer() -> Tracer | None:
    """Returns the application's tracer for penstock; None without a provider."""
    try:
        from opentelemetry import trace

        provider = trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
            return None
    except (ImportError, AttributeError):  # half imported, by another thread
        return None
    return provider.get_tracer("penstock")


def _span_attributes(destination: str, operation: str, kind: str, count: int | None) -> dict[str, AttributeValue]:
    about: dict[str, AttributeValue] = {
        "messaging.system": "penstock",
        "messaging.destination.name": destination,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }
    if count is not None:
        about["messaging.batch.message_count"] = count
    return about


def _context(headers: Mapping[str, str]) -> Context:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    known = {name: headers[name] for name in (TRACEPARENT, TRACESTATE) if name in headers}
    return TraceContextTextMapPropagator().extract(known)
