"""A span for each request, if OpenTelemetry is installed and told where to send them.

Attributes follow OpenTelemetry's conventions for HTTP servers and for generative AI
(https://opentelemetry.io/docs/specs/semconv/gen-ai/). Neither prompts nor answers are part of a span.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenmill import __version__
from tokenmill.errors import ConfigError
from tokenmill.server.request_log import RequestNote, current_note

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span


def check_installed() -> None:
    """Raises ConfigError if OpenTelemetry is not there."""
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace.export  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "traces need OpenTelemetry; install it with pip install 'tokenmill[otel]'"
        ) from error


def exporting_to(endpoint: str) -> TracerProvider:
    """Sends spans to a collector in batches, on a thread of its own, and the last ones at exit.

    endpoint: of OTLP over HTTP, such as http://localhost:4318; "/v1/traces" is added if it is missing.
    Raises ConfigError if OpenTelemetry is not installed.
    """
    check_installed()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    base = endpoint.rstrip("/")
    url = base if base.endswith("/v1/traces") else f"{base}/v1/traces"
    resource = Resource.create({"service.name": "tokenmill", "service.version": __version__})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
    return provider


class Tracing:
    """Middleware: one span for each POST, below the caller's if it sends a traceparent.

    model: the name that is served.
    """

    def __init__(self, app: ASGIApp, *, provider: TracerProvider, model: str) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._app = app
        self._tracer = provider.get_tracer("tokenmill", __version__)
        self._context_of = TraceContextTextMapPropagator().extract
        self._model = model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        from opentelemetry.trace import SpanKind

        context = self._context_of(dict(Headers(scope=scope)))
        with self._tracer.start_as_current_span("llm_request", context, SpanKind.SERVER) as span:

            async def noted(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                await send(message)

            span.set_attribute("http.request.method", scope["method"])
            span.set_attribute("url.path", scope["path"])
            span.set_attribute("gen_ai.request.model", self._model)
            try:
                await self._app(scope, receive, noted)
            finally:
                note = current_note()
                if note is not None:
                    describe(span, note)


def describe(span: Span, note: RequestNote) -> None:
    """What was learnt about a request, as attributes."""
    span.set_attribute("tokenmill.request_id", note.request_id)
    span.set_attribute("gen_ai.usage.input_tokens", note.prompt_tokens)
    span.set_attribute("gen_ai.usage.cached_tokens", note.cached_tokens)
    span.set_attribute("gen_ai.usage.output_tokens", note.generated_tokens)
    span.set_attribute("gen_ai.response.finish_reasons", tuple(note.reasons))
    if note.first_token_s is not None:
        span.set_attribute("gen_ai.server.time_to_first_token", note.first_token_s)
