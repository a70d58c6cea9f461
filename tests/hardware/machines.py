"""Machines made of files."""

from __future__ import annotations

from pathlib import Path


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def with_cores(root: Path, siblings: list[str]) -> Path:
    """siblings: for each CPU, the CPUs of its core, as the kernel writes them."""
    files = {
        f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": text
        for cpu, text in enumerate(siblings)
    }
    return write(root, {"devices/system/cpu/online": f"0-{len(siblings) - 1}", **files})
