"""Whether two processes can talk to each other, and why not."""

from __future__ import annotations

from pdd.core.ids import NodeId
from pdd.core.kv_format import KvFormat, abbreviate
from pdd.protocol.peer import PROTOCOL_VERSION, Hello


def reason_to_refuse(hello: Hello, *, node: NodeId, kv_format: KvFormat) -> str | None:
    """Why a node must not talk to this caller, or None."""
    if hello.version != PROTOCOL_VERSION:
        return f"{hello.kind} {hello.name!r} speaks protocol version {hello.version}, node {node!r} {PROTOCOL_VERSION}"
    if hello.fingerprint != kv_format.fingerprint:
        difference = describe_difference(hello.kv_format, kv_format.description)
        return (
            f"KV formats differ in {difference}: {hello.kind} {hello.name!r} has {abbreviate(hello.kv_format)!r}, "
            f"node {node!r} has {abbreviate(kv_format.description)!r}"
        )
    return None


def describe_difference(theirs: str, ours: str) -> str:
    """Names the parts (model, block length, layers) in which two descriptions of KV formats differ."""
    their_parts, our_parts = theirs.split("|"), ours.split("|")
    if len(their_parts) != len(our_parts):
        return "their structure"
    names = ("model", "block length", "layers")
    differing = [name for name, a, b in zip(names, their_parts, our_parts, strict=False) if a != b]
    return " and ".join(differing) or "their fingerprint"
