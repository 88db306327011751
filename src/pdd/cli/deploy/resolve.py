"""``pdd topology resolve``: writes what `pdd up` starts its roles from, for roles that something else starts."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import msgspec

from pdd.cli.commands import CommandParser
from pdd.cli.given_text import as_text
from pdd.core.errors import ConfigError

_SUFFIX = ".json"
"""By which roles tell a resolved topology from a TOML file."""


def define(parser: CommandParser) -> None:
    """``pdd topology resolve``."""
    parser.description = (
        "Writes a topology as `pdd up` hands it to its roles: with a port for whatever has none, the forwards of its "
        "links, and the KV format of its model. A KV node is started from it, and needs no model. Fixed ports stay as "
        "they are. It may hold API keys: --output makes a file for its owner only."
    )
    parser.epilog = "It is one JSON object; every role takes such a file, by --topology."
    parser.add_argument("topology", metavar="TOPOLOGY", help="a packaged topology's name or a TOML file")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="where to, a name that ends in .json (default: stdout)"
    )
    parser.set_defaults(run=run_resolve)


def run_resolve(arguments: argparse.Namespace) -> int:
    """Writes the resolved topology.

    Raises:
        ConfigError: something in the topology is wrong, a port can't be chosen, or the file can't be written.
    """
    from pdd.cli.topology.file import load_topology
    from pdd.cli.topology.formats import with_kv_format
    from pdd.cli.topology.ports import resolve, write_resolved
    from pdd.cli.topology.wiring import Exposure

    output: Path | None = arguments.output
    if output is not None and output.suffix != _SUFFIX:
        raise ConfigError(f"--output {as_text(str(output))}: roles read it as JSON if its name ends in {_SUFFIX}")
    # Nothing is started here: who may listen where, each role is asked for itself.
    topology = load_topology(arguments.topology, exposure=Exposure.INSECURE_PLAINTEXT)
    resolved = resolve(with_kv_format(topology))
    if output is None:
        print(json.dumps(msgspec.to_builtins(resolved), indent=2))
        return 0
    try:
        write_resolved(resolved, output)
    except OSError as error:
        raise ConfigError(f"--output {as_text(str(output))}: {error.strerror}") from error
    return 0
