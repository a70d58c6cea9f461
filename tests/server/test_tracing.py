"""Spans, as a collector gets them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.server.conftest import Client
from tests.server.fake_engine import FakeEngine
from tokenmill.config import ServerConfig
from tokenmill.errors import ConfigError
from tokenmill.server import app, tracing

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "a very private matter"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """What has been traced, in place of what would have been sent."""
    exporter = InMemorySpanExporter()

    def kept(endpoint: str) -> TracerProvider:
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        return provider

    monkeypatch.setattr(app, "exporting_to", kept)
    return exporter


def traced(spans: InMemorySpanExporter, **options: Any) -> ReadableSpan:
    client = Client(FakeEngine(), config=ServerConfig(otlp_endpoint="http://collector"))
    client.request("POST", "/v1/completions", **options)
    (span,) = spans.get_finished_spans()
    return span


@pytest.mark.parametrize("stream", [False, True])
def test_a_request(stream: bool, spans: InMemorySpanExporter) -> None:
    body = {"prompt": SECRET, "max_tokens": 5, "n": 2, "stream": stream}
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
    span = traced(spans, json=body, headers=headers)
    assert span.name == "llm_request"
    assert span.parent is not None
    assert (span.parent.trace_id, span.parent.span_id) == (int(TRACE, 16), int(PARENT, 16))
    assert dict(span.attributes or {}) == {
        "http.request.method": "POST",
        "url.path": "/v1/completions",
        "http.response.status_code": 200,
        "tokenmill.request_id": "mine",
        "gen_ai.request.model": "fake",
        "gen_ai.usage.input_tokens": len(SECRET),
        "gen_ai.usage.cached_tokens": 1,
        "gen_ai.usage.output_tokens": 10,
        "gen_ai.response.finish_reasons": ("length", "length"),
    }
    assert SECRET not in span.to_json()


def test_a_refusal(spans: InMemorySpanExporter) -> None:
    span = traced(spans, json={"prompt": ""}, headers={"traceparent": "rubbish"})
    assert span.parent is None
    assert span.attributes is not None
    assert span.attributes["http.response.status_code"] == 400
    assert span.attributes["gen_ai.usage.output_tokens"] == 0


def test_what_is_only_read_is_not_traced(spans: InMemorySpanExporter) -> None:
    client = Client(FakeEngine(), config=ServerConfig(otlp_endpoint="http://collector"))
    client.request("GET", "/health")
    assert spans.get_finished_spans() == ()


def test_nothing_is_traced_unless_asked(spans: InMemorySpanExporter, client: Client) -> None:
    client.complete(prompt="a", max_tokens=1)
    assert spans.get_finished_spans() == ()


@contextmanager
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """A server's address, and what it was sent: paths and bodies."""
    received: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("suffix", ["", "/", "/v1/traces"])
def test_a_collector_gets_them(suffix: str) -> None:
    with collector() as (address, received):
        provider = tracing.exporting_to(address + suffix)
        with provider.get_tracer("test").start_as_current_span("a span of mine"):
            pass
        provider.shutdown()
    ((path, body),) = received
    assert path == "/v1/traces"
    assert b"a span of mine" in body
    assert b"tokenmill" in body


def test_without_opentelemetry(monkeypatch: pytest.MonkeyPatch, engine: FakeEngine) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry.sdk")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"tokenmill\[otel\]"):
        Client(engine, config=ServerConfig(otlp_endpoint="http://collector"))
