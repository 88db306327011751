"""Two turns of one conversation: the second sends only the KV of what is new, since main decode holds the rest.

Run it beside ``pdd up``: ``python examples/second_turn.py``.
"""

import argparse
import secrets

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

NOTES = "\n".join(
    f"{hour:02}:00 The night ferry reports {hour * 7 % 23} knots of wind and a calm sea." for hour in range(8)
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare what two turns of a conversation send over the WAN.")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the router's address (default: %(default)s)")
    parser.add_argument("--api-key", default="none-needed-on-loopback", help="names a tenant, where there are tenants")
    args = parser.parse_args()

    client = OpenAI(base_url=f"{args.url}/v1", api_key=args.api_key)
    model = client.models.list().data[0].id
    salt = secrets.token_hex(8)
    messages: list[ChatCompletionMessageParam] = []
    for question in (f"{NOTES}\nSum this log up in a sentence.", "And the strongest wind?"):
        messages.append({"role": "user", "content": question})
        answer = client.chat.completions.create(
            model=model,
            messages=messages,
            max_tokens=32,
            temperature=0,
            # Direct: the answer waits for its KV, so the figures below are complete when it ends.
            extra_body={"pdd": {"route": "direct", "cache_salt": salt, "trace": True}},
        )
        # The answer goes back exactly as it came: only then does the router know its token IDs again.
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
        report = answer.model_dump()["pdd"]["report"]
        print(
            f"{report['num_prompt_tokens']} prompt tokens, second token after {report['ttst_s']:.2f} s, "
            f"{report['wan_kv_bytes']} bytes of KV over the WAN"
        )


if __name__ == "__main__":
    main()
