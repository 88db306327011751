"""Makes Hugging Face folders for tests: the tiny model, whole, or just a configuration beside a few numbers."""

import json
from pathlib import Path

import numpy as np

from pdd.engine.catalog import find_model
from pdd.engine.checkpoint import export_checkpoint
from pdd.engine.models.safetensors import write_float32

TINY = "tiny-random-32"


def tiny_folder(parent: Path, name: str = "Tiny") -> Path:
    """The tiny model as somebody would have published it."""
    export_checkpoint(find_model(TINY), parent / name)
    return parent / name


def configured_folder(parent: Path, config: dict, name: str = "Model") -> Path:
    """A folder that says ``config`` of itself; its weights are three numbers."""
    folder = parent / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    write_float32(folder / "model.safetensors", {"w": (3,)}, [("w", np.arange(3, dtype=np.float32))])
    return folder


def edit_json(path: Path, **changes) -> None:
    """Sets keys of a JSON file; None takes one out."""
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
