"""Figures about requests and the engine, as text that Prometheus reads.

The format is version 0.0.4 of Prometheus' text exposition
(https://prometheus.io/docs/instrumenting/exposition_formats/). Names after the prefix are those of
vLLM's metrics, so dashboards made for vLLM work with ``--metrics-prefix vllm``. Written here because
counters and histograms of one process are a page of code, and a client library would be one more thing
to install.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenmill.engine.outputs import EngineStats, RequestMetrics, TokenOutput
from tokenmill.engine.sampling_params import SamplingParams

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[tuple[str, str], ...]
"""Names and values, in the order in which they are written."""

FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
BETWEEN_TOKENS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
WHOLE_REQUEST_S = (
    *(0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
FEW = (1.0, 2.0, 5.0, 10.0, 20.0)


def token_bounds(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, ... up to ``limit``."""
    steps = (digit * 10**power for power in range(12) for digit in (1, 2, 5))
    return tuple(float(step) for step in steps if step <= limit) or (1.0,)


class Histogram:
    """Counts values up to each bound, and adds them up."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """One more value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: Labels) -> Iterator[str]:
        """Its samples."""
        below = 0
        for bound, count in zip((*map(_number, self.bounds), "+Inf"), self.counts, strict=True):
            below += count
            yield sample(f"{name}_bucket", below, (*labels, ("le", bound)))
        yield sample(f"{name}_sum", self.total, labels)
        yield sample(f"{name}_count", below, labels)


@dataclass(frozen=True)
class Finished:
    """One prompt that has been served, well or not.

    reasons: how its answers ended: "stop", "length", "abort" (the client left, or time was up) or
    "error". generated: tokens of each answer. times: None if the engine had not begun.
    """

    prompt_tokens: int
    generated: Sequence[int]
    reasons: Sequence[str]
    params: SamplingParams
    times: RequestMetrics | None
    arrived: float
    ended: float


class Metrics:
    """Everything that /metrics tells. ``token`` is called for every token, so it does little.

    prefix: of the names. model: for the label ``model_name``. max_model_len: sets the bounds of token
    counts.
    """

    def __init__(self, prefix: str, model: str, max_model_len: int) -> None:
        self._prefix = prefix
        self._labels: Labels = (("model_name", model), ("engine", "0"))
        tokens = token_bounds(max_model_len)
        self._between_tokens = Histogram(BETWEEN_TOKENS_S)
        self._histograms: dict[str, tuple[str, Histogram]] = {
            "time_to_first_token_seconds": (
                "From arrival to the first token.",
                Histogram(FIRST_TOKEN_S),
            ),
            "inter_token_latency_seconds": ("Between two tokens of an answer.", self._between_tokens),
            "request_time_per_output_token_seconds": (
                "Time between tokens of a request, on average.",
                Histogram(BETWEEN_TOKENS_S),
            ),
            "e2e_request_latency_seconds": ("From arrival to the end.", Histogram(WHOLE_REQUEST_S)),
            "request_queue_time_seconds": ("Waiting for a place.", Histogram(WHOLE_REQUEST_S)),
            "request_prefill_time_seconds": (
                "From the first step to the first token.",
                Histogram(WHOLE_REQUEST_S),
            ),
            "request_decode_time_seconds": (
                "From the first token to the last.",
                Histogram(WHOLE_REQUEST_S),
            ),
            "request_inference_time_seconds": (
                "From the first step to the last token.",
                Histogram(WHOLE_REQUEST_S),
            ),
            "request_prompt_tokens": ("Tokens of prompts.", Histogram(tokens)),
            "request_generation_tokens": ("Tokens generated for a request.", Histogram(tokens)),
            "request_max_num_generation_tokens": (
                "Tokens of the longest answer of a request.",
                Histogram(tokens),
            ),
            "request_params_n": ("Answers asked for.", Histogram(FEW)),
            "request_params_max_tokens": ("Longest answers asked for.", Histogram(tokens)),
        }
        self._reasons = dict.fromkeys(("stop", "length", "abort", "error"), 0)
        self._refused: dict[str, int] = {}
        self._http: dict[Labels, int] = {}

    def tokens(self, outputs: Iterable[TokenOutput]) -> None:
        """Tokens that the engine has just made."""
        observe = self._between_tokens.observe
        for output in outputs:
            if output.interval_s is not None:
                observe(output.interval_s)

    def finished(self, request: Finished) -> None:
        """A prompt has been served to its end."""
        for reason in request.reasons:
            self._reasons[reason] = self._reasons.get(reason, 0) + 1
        self._observe("request_params_n", request.params.n)
        if request.params.max_tokens is not None:
            self._observe("request_params_max_tokens", request.params.max_tokens)
        self._observe("e2e_request_latency_seconds", request.ended - request.arrived)
        times = request.times
        if times is None:
            return
        self._observe("request_prompt_tokens", request.prompt_tokens)
        generated = sum(request.generated)
        self._observe("request_generation_tokens", generated)
        self._observe("request_max_num_generation_tokens", max(request.generated, default=0))
        first, last, scheduled = (
            times.first_token_time,
            times.last_token_time,
            times.first_scheduled_time,
        )
        if times.time_in_queue is not None:
            self._observe("request_queue_time_seconds", times.time_in_queue)
        if first is None or last is None:
            return
        self._observe("time_to_first_token_seconds", first - times.arrival_time)
        self._observe("request_decode_time_seconds", last - first)
        if scheduled is not None:
            self._observe("request_prefill_time_seconds", first - scheduled)
            self._observe("request_inference_time_seconds", last - scheduled)
        more = generated / request.params.n - 1
        if more >= 1:
            self._observe("request_time_per_output_token_seconds", (last - first) / more)

    def refused(self, code: str) -> None:
        """A request was not taken up: the queue was full, say."""
        self._refused[code] = self._refused.get(code, 0) + 1

    def http(self, method: str, handler: str, status: int) -> None:
        """An HTTP request was answered. handler: the route's path, never the client's."""
        labels = (("method", method), ("handler", handler), ("status", str(status)))
        self._http[labels] = self._http.get(labels, 0) + 1

    def _observe(self, name: str, value: float) -> None:
        self._histograms[name][1].observe(max(value, 0.0))

    def render(self, stats: EngineStats, *, asleep: bool) -> str:
        """The whole text."""
        return "\n".join([*self._lines(stats, asleep), *process_lines(), ""])

    def _lines(self, stats: EngineStats, asleep: bool) -> Iterator[str]:
        gauges: Mapping[str, tuple[str, float]] = {
            "num_requests_running": ("Answers being made.", stats.running),
            "num_requests_waiting": ("Answers that wait for a place.", stats.waiting),
            "kv_cache_usage_perc": ("Share of the cache in use; 1 is all of it.", stats.cache_usage),
            "engine_sleeping": ("1 while the engine sleeps.", float(asleep)),
        }
        for name, (text, value) in gauges.items():
            yield from self._family(name, "gauge", text, [(self._labels, value)])
        counters: Mapping[str, tuple[str, int]] = {
            "prompt_tokens_total": ("Tokens of prompts computed.", stats.prompt_tokens),
            "generation_tokens_total": ("Tokens generated.", stats.generated_tokens),
            "prefix_cache_queries_total": ("Prompt tokens looked up.", stats.prefix_queries),
            "prefix_cache_hits_total": ("Prompt tokens found in the cache.", stats.prefix_hits),
            "num_preemptions_total": ("Requests that lost their place.", stats.preemptions),
            "engine_steps_total": ("Steps of the engine.", stats.steps),
        }
        for name, (text, total) in counters.items():
            yield from self._family(name, "counter", text, [(self._labels, total)])
        ends = [((*self._labels, ("finished_reason", r)), n) for r, n in self._reasons.items()]
        yield from self._family("request_success_total", "counter", "Answers by how they ended.", ends)
        refusals = [((*self._labels, ("code", code)), n) for code, n in self._refused.items()]
        yield from self._family("requests_refused_total", "counter", "Requests not taken up.", refusals)
        yield from self._family(
            "http_requests_total", "counter", "Requests by their answer.", list(self._http.items())
        )
        for name, (text, histogram) in self._histograms.items():
            full = f"{self._prefix}:{name}"
            yield from head(full, "histogram", text)
            yield from histogram.lines(full, self._labels)

    def _family(
        self, name: str, kind: str, text: str, samples: Sequence[tuple[Labels, float]]
    ) -> Iterator[str]:
        full = f"{self._prefix}:{name}"
        yield from head(full, kind, text)
        for labels, value in samples:
            yield sample(full, value, labels)


def head(name: str, kind: str, text: str) -> Iterator[str]:
    """The lines before the samples of a name."""
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def sample(name: str, value: float, labels: Labels = ()) -> str:
    """One line."""
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    return f"{name}{{{inside}}} {_number(value)}" if inside else f"{name} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def process_lines(proc: Path = Path("/proc/self")) -> Iterator[str]:
    """Processor time, memory, files and age of this process; nothing where there is no /proc."""
    times = os.times()
    values = {
        "process_cpu_seconds_total": ("counter", "Processor time used.", times.user + times.system)
    }
    try:
        pages = int((proc / "statm").read_text().split()[1])
        values["process_resident_memory_bytes"] = (
            "gauge",
            "Memory held.",
            float(pages * os.sysconf("SC_PAGE_SIZE")),
        )
        values["process_open_fds"] = ("gauge", "Open files.", float(len(os.listdir(proc / "fd"))))
        # Field 22 of stat, after the name in parentheses, is the start in ticks since the machine's.
        ticks = int((proc / "stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        values["process_start_time_seconds"] = ("gauge", "When it began.", round(time.time() - age, 2))
    except OSError:
        pass
    for name, (kind, text, value) in values.items():
        yield from head(name, kind, text)
        yield sample(name, value)
