"""Reads a topology file: TOML whose keys are those of ``pdd.core.topology``, with units if one likes.

Every key that ends in ``_bits_per_s``, ``_bytes`` or ``_s`` holds a plain number of that unit. The same key without
that ending holds a string with a unit instead: ``rate = "20 Mbit/s"`` is ``rate_bits_per_s = 20e6``. Every refusal is
one line: file, key, value, what would be right.
"""

from __future__ import annotations

import difflib
import os.path
import re
import tomllib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, cast, get_args, get_origin

import msgspec

from pdd.cli.quantities import Dimension, describe, dimension_of, parse_quantity
from pdd.cli.topology.source import TopologySource
from pdd.cli.topology.wiring import Exposure
from pdd.core.errors import ConfigError
from pdd.core.topology import KvFormatTable, Topology, is_model_path

DEFAULT_TOPOLOGY = "default"
_VALIDATION_PATH = re.compile(r"(?P<problem>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)


def packaged_topologies() -> tuple[str, ...]:
    """The names that ``pdd up`` knows without a file."""
    return tuple(sorted(_named(_live_folder())))


def simulated_topologies() -> tuple[str, ...]:
    """The names that ``pdd sim`` knows without a file."""
    return tuple(sorted(_named(_simulated_folder())))


def load_topology(name_or_path: str, *, exposure: Exposure = Exposure.LOOPBACK) -> Topology:
    """Reads and checks a packaged topology or a TOML file. Ports that are 0 stay 0.

    Raises:
        ConfigError: there is no such file, or something in it is wrong.
    """
    from pdd.cli.topology.check import check_topology

    topology, source = read_topology(name_or_path)
    check_topology(topology, source.refuse, exposure)
    return topology


def read_topology(name_or_path: str) -> tuple[Topology, TopologySource]:
    """The same without a check of whether it makes sense, and so without its model.

    Raises:
        ConfigError: there is no such file, or a key or a type in it is wrong.
    """
    text, file = _read(name_or_path, _named(_live_folder()))
    topology, source = parse_topology(text, file)
    if is_model_path(topology.model):
        topology = msgspec.structs.replace(topology, model=_absolute(Path(file).parent / topology.model))
    return topology, source


def load_simulated_topology(name_or_path: str) -> Topology:
    """The same for a simulation: engines are modelled, arenas may be huge, and the model is a profile.

    Raises:
        ConfigError: there is no such file, or something in it is wrong.
    """
    from pdd.cli.topology.check import check_simulated_topology

    text, file = _read(name_or_path, _named(_simulated_folder()))
    topology, source = parse_topology(text, file)
    check_simulated_topology(topology, source.refuse)
    return topology


def parse_topology(text: str, file: str) -> tuple[Topology, TopologySource]:
    """Reads TOML into a topology whose keys and types are right; whether it makes sense, ``check_topology`` says.

    Raises:
        ConfigError: not TOML, an unknown or missing key, a value of a wrong type, a unit that isn't one.
    """
    source = TopologySource(file=file)
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from error
    plain = _to_plain(raw, Topology, "", source)
    try:
        return msgspec.convert(plain, Topology), source
    except msgspec.ValidationError as error:
        raise _from_validation(error, source) from error


def _absolute(path: Path) -> str:
    """Without ``..``, but through no link: a model may be a link that has a better name than what it points to."""
    return os.path.abspath(path)  # noqa: PTH100


def _live_folder() -> Traversable:
    return files("pdd.cli.topology") / "packaged"


def _simulated_folder() -> Traversable:
    return files("pdd.sim") / "topologies"


def _named(folder: Traversable) -> dict[str, Traversable]:
    """The files of a folder by what they are called without ``.toml``."""
    return {entry.name.removesuffix(".toml"): entry for entry in folder.iterdir() if entry.name.endswith(".toml")}


def _read(name_or_path: str, named: Mapping[str, Traversable]) -> tuple[str, str]:
    if name_or_path in named:
        entry = named[name_or_path]
        return entry.read_text(encoding="utf-8"), entry.name
    path = Path(name_or_path)
    try:
        return path.read_text(encoding="utf-8"), str(path)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: it must be UTF-8 text") from error
    except OSError as error:
        known = ", ".join(sorted(named))
        raise ConfigError(
            f"{path}: {error.strerror}; give a TOML file, or the name of a packaged topology: {known}"
        ) from error


def _to_plain(raw: dict[str, Any], table: type[msgspec.Struct], path: str, source: TopologySource) -> dict[str, Any]:
    """``raw`` with every quantity as a plain number, under the keys of ``table``."""
    fields = {each.encode_name: each for each in msgspec.structs.fields(table)}
    quantities = dict(_quantity_keys(fields))
    plain: dict[str, Any] = {}
    for key, value in raw.items():
        written = _join(path, key)
        full_key, dimension = quantities.get(key, (key, None))
        if full_key not in fields:
            raise ConfigError(f"{source.file}: {written}: unknown key{_did_you_mean(key, [*fields, *quantities])}")
        if full_key in plain:
            raise source.refuse(_join(path, full_key), f"the same is given again as {key!r}; keep one of them")
        source.written[_join(path, full_key)] = (written, value if _is_scalar(value) else None)
        if dimension is None:
            plain[full_key] = _descend(value, fields[full_key].type, _join(path, key), source)
        else:
            plain[full_key] = _quantity(value, dimension, _join(path, full_key), full_key, source)
    return plain


def _quantity_keys(fields: dict[str, Any]) -> Iterator[tuple[str, tuple[str, Dimension]]]:
    for name in fields:
        dimension = dimension_of(name)
        if dimension is not None:
            yield name.removesuffix(dimension.value), (name, dimension)


def _quantity(value: object, dimension: Dimension, path: str, key: str, source: TopologySource) -> float | int:
    if not isinstance(value, str):
        raise source.refuse(path, f"it must be {describe(dimension)}; plain numbers go under {key!r}", value=value)
    try:
        number = parse_quantity(value, dimension)
    except ConfigError as error:
        raise source.refuse(path, f"it must be {describe(dimension)}") from error
    return round(number) if dimension is Dimension.SIZE else number


def _descend(value: object, kind: object, path: str, source: TopologySource) -> object:
    """Follows tables and arrays of tables; everything else stays as it is."""
    if kind == KvFormatTable | None:
        kind = KvFormatTable
    if isinstance(kind, type) and issubclass(kind, StrEnum) and value not in [member.value for member in kind]:
        known = ", ".join(member.value for member in kind)
        raise source.refuse(path, f"it must be one of: {known}", value=value)
    if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _to_plain(cast("dict[str, Any]", value), kind, path, source)
    element = get_args(kind)[0] if get_origin(kind) is tuple else None
    if isinstance(value, list) and element is not None:
        items = cast("list[object]", value)
        for index, item in enumerate(items):
            source.written[f"{path}[{index}]"] = (f"{path}[{index}]", item if _is_scalar(item) else None)
        return [_descend(item, element, f"{path}[{index}]", source) for index, item in enumerate(items)]
    return cast("object", value)


def _from_validation(error: msgspec.ValidationError, source: TopologySource) -> ConfigError:
    match = _VALIDATION_PATH.fullmatch(str(error))
    problem, path = (match["problem"], match["path"] or "") if match else (str(error), "")
    missing = re.fullmatch(r"Object missing required field `(.*)`", problem)
    if missing:
        return ConfigError(f"{source.file}: {_join(path, missing[1])}: this key is missing")
    return source.refuse(path, problem[:1].lower() + problem[1:])


def _did_you_mean(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known keys: {', '.join(sorted(known))}"


def _is_scalar(value: object) -> bool:
    return isinstance(value, str | int | float)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
