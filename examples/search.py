"""Finds the passages that are most like a question, by the vectors of a generating model."""

from tokenmill import LLM, PoolingParams

PASSAGES = [
    "my_list.reverse() reverses a list in place.",
    "The weather in Paris is mild in spring.",
    "Bananas are rich in potassium.",
]


def main() -> None:
    with LLM("demo") as llm:
        question = "How do I reverse a list in Python?"
        scores = llm.score(question, PASSAGES, PoolingParams("mean"), use_tqdm=False)
        ranked = sorted(zip(scores, PASSAGES, strict=True), key=lambda pair: -pair[0].outputs.score)
        for score, passage in ranked:
            print(f"{score.outputs.score:.3f} {passage}")


if __name__ == "__main__":
    main()
