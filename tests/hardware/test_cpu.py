from __future__ import annotations

from pathlib import Path

import pytest

from tokenmill.hardware.cpu import read_cpu, zen_generation

EPYC = """\
processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 1
model name\t: AMD EPYC 7763 64-Core Processor
flags\t\t: fpu sse4_2 avx f16c fma avx2 bmi2 made_up

processor\t: 1
vendor_id\t: AuthenticAMD
model name\t: another name
flags\t\t: avx512f
"""

ARM = """\
processor\t: 0
Features\t: fp asimd asimddp i8mm
Hardware\t: Some board
"""


def test_amd(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(EPYC)
    cpu = read_cpu(tmp_path / "cpuinfo")
    assert cpu.model == "AMD EPYC 7763 64-Core Processor"
    assert cpu.generation == "Zen 3"
    assert cpu.instruction_sets == ("SSE4.2", "AVX", "AVX2", "FMA", "F16C", "BMI2")
    assert "made_up" in cpu.flags


def test_arm(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(ARM)
    cpu = read_cpu(tmp_path / "cpuinfo")
    assert (cpu.model, cpu.generation) == ("Some board", None)
    assert cpu.instruction_sets == ("NEON", "DOTPROD", "I8MM")


def test_without_cpuinfo(tmp_path: Path) -> None:
    cpu = read_cpu(tmp_path / "absent")
    assert cpu.model
    assert cpu.instruction_sets == ()


def test_this_machine() -> None:
    assert read_cpu().model


@pytest.mark.parametrize(
    ("family", "model", "generation"),
    [
        (0x17, 0x01, "Zen"),
        (0x17, 0x08, "Zen"),
        (0x17, 0x31, "Zen 2"),
        (0x17, 0x71, "Zen 2"),
        (0x19, 0x01, "Zen 3"),
        (0x19, 0x21, "Zen 3"),
        (0x19, 0x50, "Zen 3"),
        (0x19, 0x11, "Zen 4"),
        (0x19, 0x61, "Zen 4"),
        (0x19, 0xA0, "Zen 4"),
        (0x1A, 0x02, "Zen 5"),
        (0x1A, 0x44, "Zen 5"),
        (0x1A, 0x70, "Zen 5"),
        (0x15, 0x01, None),
        (0x1B, 0x01, None),
    ],
)
def test_generations(family: int, model: int, generation: str | None) -> None:
    assert zen_generation("AuthenticAMD", str(family), str(model)) == generation


def test_generations_are_amds() -> None:
    assert zen_generation("GenuineIntel", "25", "1") is None
    assert zen_generation("AuthenticAMD", "", "") is None
