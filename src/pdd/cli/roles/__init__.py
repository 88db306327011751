"""The commands that run one role of a topology, each composed from its parts."""
