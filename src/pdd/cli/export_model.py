"""``pdd export-model``: writes a model as a Hugging Face folder, for engines or for machines without any."""

from __future__ import annotations

import argparse
from pathlib import Path

from pdd.cli.commands import CommandParser
from pdd.cli.options import add_json
from pdd.cli.output import print_json


def define(parser: CommandParser) -> None:
    """``pdd export-model``."""
    parser.description = (
        "Writes a model of PDD's catalog as a Hugging Face folder in float32, with exactly the numbers that "
        "the embedded engine computes with: for vLLM, transformers and others. Given a folder's path, copies all but its "
        "weights: what a machine needs that runs a router, but no engine."
    )
    parser.add_argument("model", metavar="NAME", help="a name of the catalog, or the path of a folder, with a / in it")
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="where to; it must not exist")
    add_json(parser)
    parser.set_defaults(run=run_export)


def run_export(arguments: argparse.Namespace) -> int:
    """Writes the folder and says how large it is.

    Raises:
        ConfigError: there is no such model, it has no weights, or the folder exists or can't be written.
    """
    from pdd.engine.catalog import find_model
    from pdd.engine.checkpoint import export_checkpoint

    model, folder = find_model(arguments.model), arguments.folder
    export_checkpoint(model, folder)
    num_bytes = sum(file.stat().st_size for file in folder.iterdir())
    if arguments.json:
        print_json({"model": model.name, "folder": str(folder), "bytes": num_bytes})
    else:
        print(f"{model.name} in {folder}: {num_bytes / 1e6:.1f} MB")
    return 0
