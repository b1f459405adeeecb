"""The trace context in the payload of a job: write it, and read it as links or as a parent."""

import json
from collections.abc import Mapping
from dataclasses import replace

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from graphile_worker._payloads import encode
from graphile_worker.jobs import JobSpec
from graphile_worker.tasks.batch import TRACE_KEY

# The default limit of SDKs. Any number of spans may have added the items of a batch.
MAX_LINKS = 128

W3C_PROPAGATOR = TraceContextTextMapPropagator()


def build_trace_context(span: Span) -> dict[str, str | int] | None:
    """Build the trace context of a payload: the Rust worker's three keys, then W3C's.

    Returns None if the span is not valid.
    """
    context = span.get_span_context()
    if not context.is_valid:
        return None
    carrier: dict[str, str] = {}
    W3C_PROPAGATOR.inject(carrier, trace.set_span_in_context(span))
    return {
        "flags": int(context.trace_flags),
        "trace_id": trace.format_trace_id(context.trace_id),
        "span_id": trace.format_span_id(context.span_id),
        **carrier,
    }


def add_trace_context(spec: JobSpec, trace_context: Mapping[str, object]) -> JobSpec:
    """Return the job with a trace context in its payload, or in the items of a batch."""
    text = encode(spec.payload)
    # The database stores an empty object for a job without a payload.
    payload = {} if text is None else json.loads(text)
    if isinstance(payload, dict):
        payload[TRACE_KEY] = trace_context
    elif isinstance(payload, list):
        for item in payload:
            if isinstance(item, dict):
                item[TRACE_KEY] = trace_context
    return replace(spec, payload=payload)


def build_links(payload: object) -> list[Link]:
    """Build links to the spans that added a job or the items of a batch, each once."""
    links: dict[tuple[int, int], Link] = {}
    for item in payload if isinstance(payload, list) else [payload]:
        if len(links) == MAX_LINKS:
            break
        if (context := _read_span_context(item)) is not None:
            links.setdefault((context.trace_id, context.span_id), Link(context))
    return list(links.values())


def build_parent_context(payload: object) -> Context | None:
    """Build a context in which the span that added the job is the parent of new spans.

    Returns None for a batch, whose items may have several, and without a valid trace context.
    """
    span_context = _read_span_context(payload)
    if span_context is None:
        return None
    return trace.set_span_in_context(NonRecordingSpan(span_context), Context())


def _read_span_context(item: object) -> SpanContext | None:
    mark = item.get(TRACE_KEY) if isinstance(item, dict) else None
    if not isinstance(mark, dict):
        return None
    w3c_context = _parse_traceparent(mark.get("traceparent"), mark.get("tracestate"))
    return w3c_context or _parse_traceparent(_format_traceparent(mark))


def _format_traceparent(trace_context: Mapping[str, object]) -> str | None:
    """Convert the Rust worker's three keys to W3C's, unchecked."""
    flags = trace_context.get("flags")
    if not isinstance(flags, int) or isinstance(flags, bool):
        return None
    return f"00-{trace_context.get('trace_id')}-{trace_context.get('span_id')}-{flags:02x}"


def _parse_traceparent(traceparent: object, tracestate: object = None) -> SpanContext | None:
    """Parse a traceparent. Returns None if it is not valid, since payloads are untrusted."""
    if not isinstance(traceparent, str):
        return None
    carrier = {"traceparent": traceparent}
    if isinstance(tracestate, str):
        carrier["tracestate"] = tracestate
    context = trace.get_current_span(W3C_PROPAGATOR.extract(carrier, Context())).get_span_context()
    return context if context.is_valid else None
