"""Streams an answer from a running server (tokenmill serve demo). Needs: pip install openai"""

from openai import OpenAI


def main() -> None:
    client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")
    stream = client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "Name three colours."}], stream=True
    )
    for chunk in stream:
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
