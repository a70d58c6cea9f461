"""What every record of a server's measurement says of its circumstances, and where it is kept."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tokenmill import __version__
from tokenmill.hardware import read_cpu

HOME = Path(__file__).parent / "results" / "server"


def circumstances(model: str, threads: int) -> dict[str, Any]:
    """To be called before the run: the load average tells whether others used the machine."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": read_cpu().model,
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "load_average": os.getloadavg()[0],
        "version": __version__,
        # A path says where something lay on this machine, which is nobody's business.
        "model": Path(model).name,
        "threads": threads,
    }


def record(kind: str, found: Mapping[str, Any], home: Path) -> Path:
    """Write a record; its path."""
    words = "".join(c if c.isalnum() else " " for c in found["cpu"]).lower().split()
    name = f"{found['date'][:10]}-{kind}-{Path(found['model']).stem}-{'-'.join(words)}.json"
    home.mkdir(parents=True, exist_ok=True)
    target = home / name
    target.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    return target
