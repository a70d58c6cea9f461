"""A conversation in which the model sees what was said before, from Python."""

from tokenmill import LLM, SamplingParams

QUESTIONS = ["Name a European capital.", "Which country is that in?"]


def main() -> None:
    params = SamplingParams(temperature=0, max_tokens=48)
    messages = [{"role": "system", "content": "Answer in one short sentence."}]
    with LLM("demo") as llm:
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            output = llm.chat(messages, params, use_tqdm=False)[0]
            answer = output.outputs[0].text
            messages.append({"role": "assistant", "content": answer})
            print(f"> {question}\n{answer}\n({output.num_cached_tokens} prompt tokens were cached)")


if __name__ == "__main__":
    main()
