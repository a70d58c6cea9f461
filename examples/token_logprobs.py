"""Token ids in, token ids with their log-probabilities out."""

from tokenmill import LLM, SamplingParams


def main() -> None:
    with LLM("demo") as llm:
        tokenizer = llm.get_tokenizer()
        ids = tokenizer.encode("The capital of France is")
        params = SamplingParams(temperature=0, max_tokens=5, logprobs=3)
        answer = llm.generate([ids], params, use_tqdm=False)[0].outputs[0]
        for token, choices in zip(answer.token_ids, answer.logprobs or [], strict=True):
            print(
                token, {tokenizer.decode([t]): round(entry.logprob, 3) for t, entry in choices.items()}
            )


if __name__ == "__main__":
    main()
