"""The text side of a published model: its own tokenizer, chat template and stop tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
from tokenizers import Tokenizer

from pdd.core.errors import ConfigError
from pdd.core.ids import TokenId
from pdd.engine.models.decoder import split_decoder
from pdd.engine.models.huggingface import read_json
from pdd.engine.models.text import TextAssets

_WITHOUT_TEMPLATE = "{{ raise_exception('this model has no chat template; use /v1/completions') }}"


def text_from_folder(folder: Path) -> TextAssets:
    """Reads ``tokenizer.json``, ``tokenizer_config.json``, the chat template and what ends an answer.

    Raises:
        ConfigError: one of these is missing or broken, or nothing says what ends an answer.
    """
    settings = read_json(folder / "tokenizer_config.json")
    tokenizer = _read_tokenizer(folder / "tokenizer.json")
    eos = _token(settings.get("eos_token"))
    return TextAssets(
        tokenizer=tokenizer,
        chat_template=_chat_template(folder, settings),
        bos_token=_token(settings.get("bos_token")),
        eos_token=eos,
        stop_token_ids=_stop_token_ids(folder, tokenizer, eos),
    )


def _read_tokenizer(path: Path) -> Tokenizer:
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file; save the model's tokenizer as a fast one to get it")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no other
        raise ConfigError(f"{path}: not a readable tokenizer ({error})") from error
    # Some are published with the length that they were trained with; a prompt is never cut or filled up here.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _check_special_tokens(path, tokenizer)
    _check_decoder(path, tokenizer)
    return tokenizer


def _check_special_tokens(path: Path, tokenizer: Tokenizer) -> None:
    """What users write must not become a control token, and a text that does so only once normalized can't be found."""
    if tokenizer.normalizer is None:
        return
    for token in tokenizer.get_added_tokens_decoder().values():
        if token.special and token.normalized:
            raise ConfigError(
                f"{path}: special token {token.content!r} is matched in normalized text: "
                'it must have "normalized": false'
            )


def _check_decoder(path: Path, tokenizer: Tokenizer) -> None:
    try:
        split_decoder(tokenizer)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _token(value: object) -> str | None:
    """Configurations hold a token's text, or an object with it."""
    if isinstance(value, dict):
        value = cast("dict[str, object]", value).get("content")
    return value if isinstance(value, str) else None


def _chat_template(folder: Path, settings: dict[str, Any]) -> str:
    """A file beside the configuration goes first, as newer tools write it."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: can't be read: {error}") from error
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = {str(each.get("name")): each.get("template") for each in cast("list[dict[str, object]]", found)}
        found = named.get("default")
    return found if isinstance(found, str) else _WITHOUT_TEMPLATE


def _stop_token_ids(folder: Path, tokenizer: Tokenizer, eos_token: str | None) -> frozenset[TokenId]:
    found: set[TokenId] = set()
    for name in ("config.json", "generation_config.json"):
        path = folder / name
        if path.is_file():
            found |= _ids(path, read_json(path).get("eos_token_id"))
    if eos_token is not None and (index := tokenizer.token_to_id(eos_token)) is not None:
        found.add(index)
    if not found:
        raise ConfigError(f"{folder}: neither generation_config.json nor config.json says eos_token_id")
    return frozenset(found)


def _ids(path: Path, value: object) -> frozenset[TokenId]:
    """One id, several, or none."""
    try:
        several = msgspec.convert(value if isinstance(value, list) else [value], list[TokenId | None])
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: eos_token_id is {value!r}; it must be a token's id, or several") from error
    return frozenset(index for index in several if index is not None)
