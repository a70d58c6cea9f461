"""The commands on a real model, as a person types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import openai
import pytest

pytestmark = pytest.mark.model

TOKENMILL = (sys.executable, "-m", "tokenmill")


def tokenmill(*argv: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TOKENMILL, *argv],
        capture_output=True,
        text=True,
        input=stdin,
        check=False,
        stdin=subprocess.DEVNULL if stdin is None else None,
    )


@contextmanager
def started(*argv: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*TOKENMILL, *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        # A shell's background jobs ignore interrupts, and so would what they start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_run_json() -> None:
    done = tokenmill(
        "run",
        "demo",
        "What is the capital of Japan?",
        "--temperature",
        "0",
        "--max-tokens",
        "12",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert "Tokyo" in result["text"]
    assert len(result["token_ids"]) == result["usage"]["completion_tokens"] <= 12
    assert result["timing"]["generated_tok_s"] > 0
    assert result["timing"]["load_s"] > 0


def test_run_streams_text_and_ends_with_figures() -> None:
    done = tokenmill(
        "run", "demo", "--raw", "-", "--max-tokens", "4", "--seed", "1", stdin="One two three"
    )
    assert done.returncode == 0
    assert done.stdout.strip()
    assert "tokens/s" in done.stderr.splitlines()[-1]


def test_chat() -> None:
    done = tokenmill("chat", "demo", "--max-tokens", "8", stdin="Hello\n/exit\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_info() -> None:
    done = tokenmill("info", "demo", "--json")
    model = json.loads(done.stdout)["model"]
    assert model["architecture"] == "LlamaForCausalLM"
    assert model["shape"]["num_hidden_layers"] == 30
    assert {entry["operator"] for entry in model["operators"]} >= {"embed", "linear", "attention"}
    assert sum(entry["count"] for entry in model["operators"] if entry["operator"] == "attention") == 30
    assert model["cache_bytes"] > 0


def test_bench() -> None:
    done = tokenmill(
        "bench", "demo", "--prompt-tokens", "40", "--gen-tokens", "6", "--concurrency", "1,2",
        "--max-model-len", "64", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    for key in ("load_s", "ttft_s", "prefill_tok_s", "peak_rss_bytes"):
        assert result[key] > 0, key
    assert set(result["ceilings"]) == {"read_bytes_s", "fp32_ops_s", "int8_ops_s", "measured_by"}
    assert result["share"]["decode_read"] > 0
    assert [run["concurrency"] for run in result["runs"]] == [1, 2]
    for run in result["runs"]:
        assert set(run) == {"concurrency", "decode_tok_s", "total_tok_s", "ttft_p50_s", "itl_p50_s"}
        assert all(value > 0 for value in run.values())


def test_bench_with_prompts_that_do_not_fit() -> None:
    done = tokenmill("bench", "demo", "--max-model-len", "64")
    assert done.returncode == 1
    assert "lower --prompt-tokens or --gen-tokens" in done.stderr.splitlines()[-1]


def test_interrupting_an_answer() -> None:
    with started(
        "run", "demo", "Count to a thousand.", "--ignore-eos", "--max-tokens", "5000"
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130
    assert err.splitlines()[-1] == "interrupted"
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve(number: signal.Signals) -> None:
    with started("serve", "demo", "--port", "0", "--max-model-len", "1024") as process:
        assert process.stderr is not None
        lines: list[str] = []
        while not lines or not lines[-1].startswith("address "):
            lines.append(process.stderr.readline())
            assert lines[-1], lines
        address = lines[-1].split()[1]
        wait_until_healthy(address.removesuffix("/v1"))
        with openai.OpenAI(base_url=address, api_key="none") as client:
            chat = client.chat.completions.create(
                model="demo",
                messages=[{"role": "user", "content": "What is the capital of Japan?"}],
                temperature=0,
                max_tokens=12,
            )
            assert "Tokyo" in (chat.choices[0].message.content or "")
            stream = client.completions.create(
                model="demo",
                prompt="One two",
                max_tokens=60,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            chunks = 0
            for _ in stream:
                chunks += 1
                if chunks == 3:
                    process.send_signal(number)
            # The request that was running could finish.
            assert chunks > 3
        process.wait()
        assert process.returncode == 0
        assert process.stderr.read().splitlines()[-1] == "stopped"


def wait_until_healthy(address: str) -> None:
    for _ in range(100):
        try:
            assert httpx.get(f"{address}/health").status_code == 200
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the server did not come up")
