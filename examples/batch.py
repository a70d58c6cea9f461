"""Several prompts at once, from Python."""

from tokenmill import LLM, SamplingParams

PROMPTS = ["The capital of France is", "Water boils at", "Once upon a time"]


def main() -> None:
    with LLM("demo") as llm:
        for output in llm.generate(PROMPTS, SamplingParams(temperature=0.7, seed=1, max_tokens=32)):
            print(repr(output.prompt), "->", repr(output.outputs[0].text))


if __name__ == "__main__":
    main()
