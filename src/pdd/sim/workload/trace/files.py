"""Reads a trace file, whatever its format: it is told by the file itself."""

from __future__ import annotations

from pathlib import Path

from pdd.core.errors import ConfigError
from pdd.sim.workload.trace.csv_rows import CSV_FORMATS, find_csv, read_csv
from pdd.sim.workload.trace.json_rows import find_json, read_json
from pdd.sim.workload.trace.report import Doubts
from pdd.sim.workload.trace.rows import Place, Recording

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NO_TEXT = {
    b"\x1f\x8b": "it is compressed; unpack it first (gunzip)",
    b"\x28\xb5\x2f\xfd": "it is compressed; unpack it first (unzstd)",
    b"PK\x03\x04": "it is an archive; unpack it first (unzip)",
    b"PAR1": "it is a Parquet file; write it as CSV or JSON lines first",
    b"version https://git-lfs": "it is a pointer of Git LFS, not the file itself; fetch that first (git lfs pull)",
}


def read_recording(path: Path, block_tokens: int | None) -> Recording:
    """All requests, in the file's order. ``block_tokens`` is what a hash id stands for; None: what its format says.

    Raises:
        ConfigError: no such file, no trace, or a line in it that is not what it should be.
    """
    file, doubts = str(path), Doubts()
    text = _text(path)
    beginning = text.lstrip()
    if not beginning:
        raise ConfigError(f"{file}: it is empty")
    if beginning.startswith(("{", "[")):
        known = find_json(text, file)
        block_tokens = block_tokens or known.block_tokens or 1
        rows = tuple(read_json(text, known, block_tokens, file, doubts))
    else:
        csv_format = find_csv(text, file)
        if csv_format is None:
            raise ConfigError(f"{file}: {_NOTHING_KNOWN}")
        known, block_tokens = csv_format.format, None
        rows = tuple(read_csv(text, csv_format, file, doubts))
    if not rows:
        raise ConfigError(f"{file}: there is no request in it")
    return Recording(format=known, block_tokens=block_tokens, rows=rows, doubts=doubts)


_NOTHING_KNOWN = (
    "not a trace: neither JSON lines with timestamp, input_length and output_length, nor CSV with "
    + " or ".join(", ".join(each.needed) for each in CSV_FORMATS)
)


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    for beginning, why in _NO_TEXT.items():
        if data.startswith(beginning):
            raise ConfigError(f"{path}: {why}")
    data = data.removeprefix(_BYTE_ORDER_MARK)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        ahead = data[: error.start]
        column = len(ahead[ahead.rfind(b"\n") + 1 :].decode("utf-8")) + 1
        Place(str(path), ahead.count(b"\n") + 1, column).refuse(f"byte 0x{data[error.start]:02x} is not UTF-8 text")
