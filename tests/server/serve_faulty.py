"""Serves a real engine over a fake model that fails when told to.

python -m tests.server.serve_faulty JSON: fields of ServerConfig, and "port" (default: a free one). A
prompt with token POISON raises within the engine's step; one with token STUCK holds up that step for
two seconds.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from tests.engine.fake_model import Bench
from tests.engine.fake_text import async_engine_of
from tokenmill.cli.serve import listen
from tokenmill.config import ServerConfig
from tokenmill.engine.step import LayerCache, StepBuffers
from tokenmill.server.app import create_app
from tokenmill.server.controls import Controls
from tokenmill.server.process import serve

POISON, STUCK = 210, 209
STEP_S = 0.005


def fail_when_told(bench: Bench) -> None:
    forward = bench.model.forward

    def faulty(step: StepBuffers, caches: Sequence[LayerCache]) -> torch.Tensor:
        tokens = step.token_ids[: int(step.num_tokens)].tolist()
        fresh = step.positions[: int(step.num_tokens)].tolist()
        told = {token for token, position in zip(tokens, fresh, strict=True) if position == 0}
        if POISON in told:
            raise ValueError("poisoned step")
        time.sleep(2.0 if STUCK in told else STEP_S)
        return forward(step, caches)

    bench.model.forward = faulty  # type: ignore[method-assign]


def main() -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    options = json.loads(sys.argv[1])
    port = options.pop("port", 0)
    for name in ("api_key_file", "ssl_certfile", "ssl_keyfile"):
        if name in options:
            options[name] = Path(options[name])
    config = ServerConfig(**options)
    controls = Controls.of(config)
    bench = Bench(num_blocks=2000, max_model_len=4000)
    fail_when_told(bench)
    engine = async_engine_of(bench)
    with listen("127.0.0.1", port) as listener:
        app = create_app(engine, model_names=("fake",), config=config, controls=controls)
        listener.listen()
        print(listener.getsockname()[1], flush=True)
        healthy = serve(
            app,
            listener,
            config=config,
            controls=controls,
            drop=engine.shutdown,
            is_dead=lambda: engine.is_dead,
        )
    engine.shutdown()
    return 0 if healthy else 1


if __name__ == "__main__":
    sys.exit(main())
