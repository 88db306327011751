"""Where a topology came from, for messages about it."""

from __future__ import annotations

from dataclasses import dataclass, field

from pdd.core.errors import ConfigError


@dataclass(slots=True, kw_only=True)
class TopologySource:
    """Where a topology came from, so that a message can show a key as its author wrote it."""

    file: str
    written: dict[str, tuple[str, object]] = field(default_factory=dict[str, tuple[str, object]])
    """Path of a key of ``pdd.core.topology`` -> path and value in the file."""

    def refuse(self, path: str, right: str, *, value: object = None) -> ConfigError:
        """The error about the key at ``path``; ``value`` where the file doesn't hold one (a default)."""
        written_path, written_value = self.written.get(path, (path, value))
        shown = "" if written_value is None else f" = {written_value!r}"
        return ConfigError(f"{self.file}: {written_path}{shown}: {right}")
