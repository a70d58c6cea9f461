"""Figures, as Prometheus' own parser reads them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.conftest import Client
from tests.server.fake_engine import FakeEngine
from tokenmill.config import ServerConfig
from tokenmill.engine.outputs import EngineStats, RequestMetrics, TokenOutput
from tokenmill.engine.sampling_params import SamplingParams
from tokenmill.server.metrics import (
    CONTENT_TYPE,
    Finished,
    Histogram,
    Metrics,
    head,
    process_lines,
    token_bounds,
)

VLLM_NAMES = {
    "num_requests_running": "gauge",
    "num_requests_waiting": "gauge",
    "kv_cache_usage_perc": "gauge",
    "prompt_tokens": "counter",
    "generation_tokens": "counter",
    "prefix_cache_queries": "counter",
    "prefix_cache_hits": "counter",
    "num_preemptions": "counter",
    "request_success": "counter",
    "time_to_first_token_seconds": "histogram",
    "inter_token_latency_seconds": "histogram",
    "request_time_per_output_token_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram",
    "request_queue_time_seconds": "histogram",
    "request_prefill_time_seconds": "histogram",
    "request_decode_time_seconds": "histogram",
    "request_inference_time_seconds": "histogram",
    "request_prompt_tokens": "histogram",
    "request_generation_tokens": "histogram",
    "request_max_num_generation_tokens": "histogram",
    "request_params_n": "histogram",
    "request_params_max_tokens": "histogram",
}
"""What vLLM's dashboards ask for, without the prefix."""

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(text: str) -> tuple[dict[str, str], Samples]:
    """Types by name, and values by name and labels, of which none may come twice."""
    types: dict[str, str] = {}
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.name not in types
        assert family.documentation
        types[family.name] = family.type
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in samples
            samples[key] = sample.value
    return types, samples


def value(samples: Samples, name: str, **labels: str) -> float:
    """The only sample of that name that has these labels."""
    found = [
        v for (n, have), v in samples.items() if n == name and labels.items() <= dict(have).items()
    ]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def served(client: Client) -> tuple[dict[str, str], Samples]:
    response = client.request("GET", "/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"] == CONTENT_TYPE
    return read(response.text)


@pytest.mark.parametrize("prefix", ["tokenmill", "vllm"])
def test_names_of_vllm(prefix: str, engine: FakeEngine) -> None:
    types, samples = served(Client(engine, config=ServerConfig(metrics_prefix=prefix)))
    for name, kind in VLLM_NAMES.items():
        assert types[f"{prefix}:{name}"] == kind
    assert value(samples, f"{prefix}:num_requests_running", model_name="fake", engine="0") == 0
    for reason in ("stop", "length", "abort", "error"):
        assert value(samples, f"{prefix}:request_success_total", finished_reason=reason) == 0


def test_requests_are_counted(engine: FakeEngine) -> None:
    client = Client(engine, config=ServerConfig(max_queue=1))
    client.complete(prompt=["abc", "ab"], max_tokens=4, n=2)
    client.post("/v1/completions", {"prompt": "a?", "max_tokens": 4})
    engine.waiting = 1
    client.refused("/v1/completions", 429, prompt="a")
    client.request("GET", "/nowhere/else")
    _, samples = served(client)
    assert value(samples, "tokenmill:request_success_total", finished_reason="length") == 4
    assert value(samples, "tokenmill:request_success_total", finished_reason="error") == 1
    assert value(samples, "tokenmill:e2e_request_latency_seconds_count") == 3
    assert value(samples, "tokenmill:request_params_n_sum") == 5
    assert value(samples, "tokenmill:requests_refused_total", code="queue_full") == 1
    assert value(samples, "tokenmill:num_requests_waiting") == 1
    http = "tokenmill:http_requests_total"
    assert value(samples, http, method="POST", handler="/v1/completions", status="200") == 1
    assert value(samples, http, handler="/v1/completions", status="503") == 1
    assert value(samples, http, handler="/v1/completions", status="429") == 1
    assert value(samples, http, method="GET", handler="other", status="404") == 1
    assert "nowhere" not in str(samples)


def test_times_of_a_request() -> None:
    metrics = Metrics("m", "model", 100)
    metrics.finished(
        Finished(
            prompt_tokens=7,
            generated=(3, 5),
            reasons=("stop", "length"),
            params=SamplingParams(n=2, max_tokens=5),
            times=RequestMetrics(
                arrival_time=1.0,
                first_scheduled_time=2.0,
                first_token_time=4.0,
                last_token_time=10.0,
                time_in_queue=1.0,
            ),
            arrived=0.5,
            ended=11.0,
        )
    )
    _, samples = read(metrics.render(EngineStats(running=1, prefix_hits=3), asleep=True))
    sums = {
        "request_prompt_tokens": 7.0,
        "request_generation_tokens": 8.0,
        "request_max_num_generation_tokens": 5.0,
        "time_to_first_token_seconds": 3.0,
        "request_queue_time_seconds": 1.0,
        "request_prefill_time_seconds": 2.0,
        "request_decode_time_seconds": 6.0,
        "request_inference_time_seconds": 8.0,
        "e2e_request_latency_seconds": 10.5,
        "request_time_per_output_token_seconds": 2.0,
    }
    assert {name: value(samples, f"m:{name}_sum") for name in sums} == sums
    assert value(samples, "m:num_requests_running") == 1
    assert value(samples, "m:prefix_cache_hits_total") == 3
    assert value(samples, "m:engine_sleeping") == 1


def test_times_between_tokens() -> None:
    metrics = Metrics("m", "model", 100)
    outputs = [
        TokenOutput("a", [1], None, None, None, None, 0, RequestMetrics(0.0), interval_s=interval)
        for interval in (None, 0.5, 0.25)
    ]
    metrics.tokens(outputs)
    _, samples = read(metrics.render(EngineStats(), asleep=False))
    assert value(samples, "m:inter_token_latency_seconds_count") == 2
    assert value(samples, "m:inter_token_latency_seconds_sum") == 0.75


def test_histogram() -> None:
    histogram = Histogram((1.0, 2.5))
    for number in (0.5, 1.0, 1.5, 2.5, 100.0):
        histogram.observe(number)
    text = "\n".join([*head("h", "histogram", "Of numbers."), *histogram.lines("h", ()), ""])
    _, samples = read(text)
    assert {dict(labels)["le"]: v for (n, labels), v in samples.items() if n == "h_bucket"} == {
        "1": 2,
        "2.5": 4,
        "+Inf": 5,
    }
    assert value(samples, "h_count") == 5
    assert value(samples, "h_sum") == 105.5


def test_labels_are_escaped() -> None:
    metrics = Metrics("m", 'a"b\\c\nd', 100)
    _, samples = read(metrics.render(EngineStats(), asleep=False))
    assert value(samples, "m:num_requests_running", model_name='a"b\\c\nd') == 0


def test_token_bounds() -> None:
    assert token_bounds(30) == (1.0, 2.0, 5.0, 10.0, 20.0)
    assert token_bounds(0) == (1.0,)


def test_the_process() -> None:
    types, samples = read("\n".join([*process_lines(), ""]))
    assert types["process_resident_memory_bytes"] == "gauge"
    assert value(samples, "process_resident_memory_bytes") > 1 << 20
    assert value(samples, "process_open_fds") > 2
    assert not math.isnan(value(samples, "process_start_time_seconds"))


def test_a_system_without_proc(tmp_path: Path) -> None:
    types, _ = read("\n".join([*process_lines(tmp_path), ""]))
    assert set(types) == {"process_cpu_seconds"}
