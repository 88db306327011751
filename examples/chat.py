"""Streams one answer with the official OpenAI client: PDD needs nothing special.

Run it beside ``pdd up``: ``python examples/chat.py "Why is the sky blue?"``.
"""

import argparse

from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask a PDD router one question.")
    parser.add_argument("question")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the router's address (default: %(default)s)")
    parser.add_argument("--api-key", default="none-needed-on-loopback", help="names a tenant, where there are tenants")
    parser.add_argument("--max-tokens", type=int, default=64)
    args = parser.parse_args()

    client = OpenAI(base_url=f"{args.url}/v1", api_key=args.api_key)
    model = client.models.list().data[0].id
    chunks = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": args.question}],
        max_tokens=args.max_tokens,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in chunks:
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        if chunk.usage is not None:
            print(f"\n-- {chunk.usage.prompt_tokens} prompt tokens, {chunk.usage.completion_tokens} answer tokens")


if __name__ == "__main__":
    main()
