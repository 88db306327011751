"""What a router has learned from the requests before: shared by all requests, changed by each."""

from __future__ import annotations

from dataclasses import dataclass, field

from pdd.core.topology import PolicyTable
from pdd.policy.filter import FilterShare
from pdd.policy.lengths import OutputLengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """How long answers are, and how many requests may still be filtered."""

    filter_share: FilterShare
    lengths: OutputLengths = field(default_factory=OutputLengths)

    @classmethod
    def under(cls, policy: PolicyTable) -> Traffic:
        """Nothing has been seen yet."""
        return cls(filter_share=FilterShare(policy.filter_max_share))
