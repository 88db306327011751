"""The phases of one relayed request, in the order of its life: where it is, and what is known only there.

A request is in exactly one phase. What a phase holds makes sense in that phase alone and ends with it: the engine that
decodes, the extend beside it. What outlives a phase (tokens, transfers, budgets) is ``protocol.relay.Relay``'s own.
``docs/phases.md`` draws every change of phase.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdd.core.request import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """The one engine whose tokens are emitted. It was asked for tokens up to position ``end``."""

    attempt: int
    role: Role
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Extend:
    """Main decode computes the KV of the first ``num_known`` output tokens."""

    attempt: int
    num_known: int


# Before the first token -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class New:
    """Not started yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefilling:
    """Prefill computes the prompt and the first token."""

    decoder: Decoder


@dataclass(frozen=True, slots=True)
class Held:
    """Prefill was stopped: others' prompts go first. It begins again when its turn comes."""


@dataclass(frozen=True, slots=True)
class AwaitingPrefill:
    """No prefill is up. One is looked for by timer."""


# Between the first token and the second -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AskingRoute:
    """The route was asked for; nothing starts before it is chosen."""


@dataclass(frozen=True, slots=True)
class AwaitingMain:
    """Route P-MD: the client waits for main decode's KV. By timer the route is asked for again."""


@dataclass(frozen=True, slots=True)
class AwaitingRelay:
    """Route P-RLD-MD or P-RLD: relay decode's KV is under way. Main decode starts instead if its KV is sooner."""


# While relay decode has the answer ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayDecoding:
    """Relay decode streams until main decode can take over. After a loss, prefill's engine may do that in its place."""

    decoder: Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class AskingHandoff:
    """Main decode can take over, and how was asked for. Relay decode goes on meanwhile."""

    decoder: Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Extending:
    """Catch-up: main decode extends what was emitted, while relay decode goes on."""

    decoder: Decoder
    extend: Extend


@dataclass(frozen=True, slots=True)
class Capped:
    """Relay decode has given all that it may. The client waits for main decode's KV."""


# While main decode has the answer -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MainStarting:
    """Main decode took over while a recovery waited. Until its first token that wait goes on: it may be lost, too."""

    decoder: Decoder
    awaited: AwaitingRelayAgain | BackingOff


@dataclass(frozen=True, slots=True, kw_only=True)
class MainDecoding:
    """Main decode streams the rest."""

    decoder: Decoder


# After a loss, while nobody decodes -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AwaitingRelayAgain:
    """Relay decode is next, and is given a moment to get the prompt's KV: to send it is quicker than to compute it."""


@dataclass(frozen=True, slots=True)
class BackingOff:
    """Every role was tried since the last token. After a while all are tried again."""


@dataclass(frozen=True, slots=True)
class Over:
    """Finished or failed. Nothing follows."""


Decoding = Prefilling | RelayDecoding | AskingHandoff | Extending | MainStarting | MainDecoding
"""An engine runs whose tokens are emitted."""

Phase = (
    New
    | Prefilling
    | Held
    | AwaitingPrefill
    | AskingRoute
    | AwaitingMain
    | AwaitingRelay
    | RelayDecoding
    | AskingHandoff
    | Extending
    | Capped
    | MainStarting
    | MainDecoding
    | AwaitingRelayAgain
    | BackingOff
    | Over
)
