"""Which CPU this is and what it can do."""

from __future__ import annotations

import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

INSTRUCTION_SETS: dict[str, str] = {
    "sse4_2": "SSE4.2",
    "avx": "AVX",
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "bmi2": "BMI2",
    "avx_vnni": "AVX-VNNI",
    "avx_vnni_int8": "AVX-VNNI-INT8",
    "avx512f": "AVX-512F",
    "avx512bw": "AVX-512BW",
    "avx512dq": "AVX-512DQ",
    "avx512vl": "AVX-512VL",
    "avx512vbmi": "AVX-512VBMI",
    "avx512_vnni": "AVX-512VNNI",
    "avx512_bf16": "AVX-512BF16",
    "avx512_fp16": "AVX-512FP16",
    "amx_tile": "AMX-TILE",
    "amx_int8": "AMX-INT8",
    "amx_bf16": "AMX-BF16",
    "asimd": "NEON",
    "asimdhp": "FP16",
    "asimddp": "DOTPROD",
    "i8mm": "I8MM",
    "bf16": "BF16",
    "sve": "SVE",
    "sve2": "SVE2",
}
"""Flags of /proc/cpuinfo that matter to kernels, and the names people know them by."""

ZEN_MODELS: dict[int, tuple[tuple[range, str], ...]] = {
    0x17: (
        (range(0x30, 0x50), "Zen 2"),
        (range(0x60, 0x80), "Zen 2"),
        (range(0x84, 0x85), "Zen 2"),
        (range(0x90, 0xB0), "Zen 2"),
        (range(0x00, 0x30), "Zen"),
        (range(0x50, 0x60), "Zen"),
    ),
    0x18: ((range(0x00, 0x100), "Zen"),),
    0x19: (
        (range(0x10, 0x20), "Zen 4"),
        (range(0x60, 0xB0), "Zen 4"),
        (range(0x00, 0x10), "Zen 3"),
        (range(0x20, 0x60), "Zen 3"),
    ),
    0x1A: (
        (range(0x00, 0x30), "Zen 5"),
        (range(0x40, 0x50), "Zen 5"),
        (range(0x60, 0x80), "Zen 5"),
        (range(0x50, 0x60), "Zen 6"),
        (range(0x80, 0xD0), "Zen 6"),
    ),
}
"""AMD's CPU families and the models of each generation (AMD's processor programming references)."""


@dataclass(frozen=True)
class Cpu:
    """model: its name. vendor: as it calls itself, or "". generation: "Zen 3" for AMD, else None.

    flags: as /proc/cpuinfo spells them; empty where the system does not tell.
    """

    model: str
    vendor: str
    generation: str | None
    flags: frozenset[str]

    @property
    def instruction_sets(self) -> tuple[str, ...]:
        """Those that matter to kernels, by the names people know them by."""
        return tuple(name for flag, name in INSTRUCTION_SETS.items() if flag in self.flags)


def read_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> Cpu:
    """This machine's CPU: from /proc/cpuinfo, or from what the system says where there is none."""
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:
        return Cpu(_portable_name(), "", None, frozenset())
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, separator, value = line.partition(":")
        if separator:
            fields.setdefault(name.strip().lower(), value.strip())
    vendor = fields.get("vendor_id", "")
    return Cpu(
        model=fields.get("model name") or fields.get("hardware") or _portable_name(),
        vendor=vendor,
        generation=zen_generation(vendor, fields.get("cpu family", ""), fields.get("model", "")),
        flags=frozenset((fields.get("flags") or fields.get("features") or "").split()),
    )


def zen_generation(vendor: str, family: str, model: str) -> str | None:
    """ "Zen 2" to "Zen 6" for the family and model numbers that an AMD CPU reports, else None."""
    if vendor not in ("AuthenticAMD", "HygonGenuine") or not (family.isdigit() and model.isdigit()):
        return None
    for models, generation in ZEN_MODELS.get(int(family), ()):
        if int(model) in models:
            return generation
    return None


def _portable_name() -> str:
    if platform.system() == "Darwin":
        try:
            done = subprocess.run(
                ["sysctl", "-n", "machdep.cpu.brand_string"],
                capture_output=True,
                text=True,
                timeout=5,
                check=True,
            )
            return done.stdout.strip()
        except (OSError, subprocess.SubprocessError):
            pass
    return platform.processor() or platform.machine() or "unknown"
