"""Writes perplexity.json: how well llama.cpp reads the text that tokenmill is held to.

    python tests/golden/make_perplexity_golden.py PYTHON MODEL...

PYTHON: of an environment with llama-cpp-python (made with 0.3.36 on a CPU with AVX-512). MODEL: what
tokenmill calls a GGUF model. Texts, windows and the definition are those of bench/perplexity.py; token
ids are tokenmill's, so that only the engines differ.
"""

import json
import subprocess
import sys
from pathlib import Path

from tokenmill.weights.sources import resolve

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "bench"))

import perplexity  # noqa: E402


def main() -> None:
    python, *names = sys.argv[1:]
    version = subprocess.run(
        [python, "-c", "import llama_cpp; print(llama_cpp.__version__)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    models = {}
    for name in names:
        path = resolve(name)
        windows = perplexity.windows_of(path)
        models[name] = {
            "tokens": sum(len(ids) - 1 for ids in windows),
            "perplexity": round(
                perplexity.perplexity(perplexity.of_llama_cpp(Path(python), path, windows)), 6
            ),
        }
    golden = {
        "made_with": f"llama-cpp-python {version}",
        "text": perplexity.TEXT.name,
        "window": perplexity.WINDOW,
        "models": models,
    }
    (HERE / "perplexity.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
