"""Pins a request to the relay and prints who computed which tokens, and when what happened. Standard library only.

Run it beside ``pdd up``: ``python examples/who_computed_what.py "Why is the sky blue?"``.
"""

import argparse
import json
import secrets
from itertools import groupby
from typing import Any
from urllib.request import Request, urlopen


def call(url: str, api_key: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """GET without a body, else POST."""
    headers = {"Authorization": f"Bearer {api_key}"}
    request = Request(url, data=None if body is None else json.dumps(body).encode(), headers=headers)
    with urlopen(request, timeout=120) as response:
        return json.load(response)


def main() -> None:
    parser = argparse.ArgumentParser(description="See who computes which token of a relayed answer.")
    parser.add_argument("question")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the router's address (default: %(default)s)")
    parser.add_argument("--api-key", default="none-needed-on-loopback", help="names a tenant, where there are tenants")
    parser.add_argument("--handoff-after", type=int, default=16, help="tokens of relay decode (default: %(default)s)")
    args = parser.parse_args()

    body = {
        "model": call(f"{args.url}/v1/models", args.api_key)["data"][0]["id"],
        "messages": [{"role": "user", "content": args.question}],
        "max_tokens": 48,
        "temperature": 0,
        "ignore_eos": True,
        "pdd": {
            "route": "relay",
            "handoff": "one_shot",
            "handoff_after_tokens": args.handoff_after,
            # A salt that was never used: nothing is cached anywhere, so the whole prompt's KV has to cross.
            "cache_salt": secrets.token_hex(8),
            "trace": True,
        },
    }
    pdd = call(f"{args.url}/v1/chat/completions", args.api_key, body)["pdd"]
    for (role, worker), spans in groupby(pdd["spans"], key=lambda span: (span["role"], span["worker"])):
        print(f"{role} at {worker}: {sum(len(span['token_ids']) for span in spans)} tokens")
    report = pdd["report"]
    print(f"route {report['route']}: {report['route_reason']}")
    print(f"{report['wan_kv_bytes']} bytes of KV crossed between clusters")
    for event in report["events"]:
        print(f"  {event['at']:8.3f} s  {event['name']}")


if __name__ == "__main__":
    main()
