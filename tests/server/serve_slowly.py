"""Serves a fake engine that takes its time: python -m tests.server.serve_slowly DRAIN_S"""

from __future__ import annotations

import socket
import sys

from tests.server.fake_engine import FakeEngine
from tokenmill.config import ServerConfig
from tokenmill.server.app import create_app
from tokenmill.server.controls import Controls
from tokenmill.server.process import serve

engine = FakeEngine(pace=0.02, max_model_len=1_000_000)
config = ServerConfig(drain_s=int(sys.argv[1]))
controls = Controls.of(config)
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    serve(
        create_app(engine, model_names=("fake",), config=config, controls=controls),
        listener,
        config=config,
        controls=controls,
        drop=engine.die,
        is_dead=lambda: False,
    )
