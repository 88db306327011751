"""The one tree of errors.

::

    PddError
    ├── ConfigError             a file, flag or key is wrong: nothing starts
    ├── InvalidRequest          the client's request is wrong: it will never succeed as it is
    │   ├── UnknownModel
    │   ├── BodyTooLarge
    │   └── ContextTooLong      prompt and output together exceed a limit
    ├── Unauthorized            no key, or not one of ours
    ├── Forbidden               a web page that is not let in
    ├── Unavailable             nobody can serve this now: try again after ``retry_after_s``
    │   └── CapacityExhausted   there is no room now (reservation refused, queue full)
    │       └── TenantOverLimit this tenant has its share of the queue already; others may still come
    ├── WorkerFailed            an engine died, hung up or broke its contract in mid-request
    ├── NodeFailed              a KV node did
    │   └── BlocksLost          the source no longer holds what was to be sent: asking again can't help
    └── ProtocolError           bytes or messages that the protocol does not allow
        ├── LocalProtocolError  ours: a programming error on this side
        ├── RemoteProtocolError theirs: the peer broke the protocol
        └── Incompatible        a peer of another version or with another KV format

Foreign exceptions are translated where they arise. HTTP status codes are chosen in ``router.api`` only.
"""

from typing import ClassVar

from pdd.core.units import Seconds


class PddError(Exception):
    """The root: everything PDD raises on purpose."""

    retryable: ClassVar[bool] = False


class ConfigError(PddError):
    """Wrong configuration. The message names the file and key (or flag), the value, and what would be right."""


class InvalidRequest(PddError):
    """The client's request can't be served as it is.

    ``param`` is the offending field's path (``messages[0].role``) or None; ``code`` is a stable machine-readable word.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class UnknownModel(InvalidRequest):
    """The request names a model that this deployment does not serve."""


class BodyTooLarge(InvalidRequest):
    """The request has more bytes than are read."""


class ContextTooLong(InvalidRequest):
    """Prompt plus output budget exceed the model's context or a KV node's arena."""


class Unauthorized(PddError):
    """The API key is missing or unknown."""


class Forbidden(PddError):
    """A web page's request, which is not let in. ``code`` is a stable machine-readable word."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class Unavailable(PddError):
    """Nobody can serve this now; it may well succeed after ``retry_after_s``."""

    retryable: ClassVar[bool] = True

    def __init__(self, message: str, *, retry_after_s: Seconds) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s


class CapacityExhausted(Unavailable):
    """There is no room now: a reservation was refused or a queue is full."""


class TenantOverLimit(CapacityExhausted):
    """One tenant waits with as many requests as it may; the others are not to pay for it."""


class WorkerFailed(PddError):
    """An engine died, hung up or broke its contract in mid-request. What it sent until then still counts."""

    retryable: ClassVar[bool] = True


class NodeFailed(PddError):
    """A KV node died, hung up or refused."""

    retryable: ClassVar[bool] = True


class BlocksLost(NodeFailed):
    """Blocks of an order were evicted at the source before they were sent, and nobody computes them again."""

    retryable: ClassVar[bool] = False


class ProtocolError(PddError):
    """Bytes or messages that a protocol does not allow."""


class LocalProtocolError(ProtocolError):
    """Our side broke the protocol: a programming error."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol: its connection is closed, nothing of it is trusted."""


class Incompatible(ProtocolError):
    """The peer speaks another version or holds another KV format. Retrying can't help."""
