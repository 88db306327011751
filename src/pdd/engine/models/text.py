"""The text side of models: tokenizer, chat template, stop tokens. Needs no torch and no weights."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE

from pdd.core.errors import ConfigError
from pdd.core.ids import TokenId
from pdd.engine.models.gguf import GgufFile

_CHATML_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_CONTROL_TOKEN = 3  # GGUF's token type of special tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAssets:
    """Between text and token IDs. An answer ends with one of ``stop_token_ids``.

    What a document begins with, the tokenizer's own post-processor adds.
    """

    tokenizer: Tokenizer
    chat_template: str
    bos_token: str | None
    eos_token: str | None
    stop_token_ids: frozenset[TokenId]


def text_from_gguf(file: GgufFile) -> TextAssets:
    """GPT-2 style byte-level BPE from the vocabulary and merges in the file's metadata.

    Raises:
        ConfigError: the file has another kind of tokenizer.
    """
    flavour = (file.text("tokenizer.ggml.model"), file.text("tokenizer.ggml.pre"))
    if flavour != ("gpt2", "smollm"):
        raise ConfigError(f"{file.path}: tokenizer {flavour} is not supported")
    vocabulary = [str(token) for token in file.items("tokenizer.ggml.tokens")]
    types = file.items("tokenizer.ggml.token_type")
    special = [token for token, kind in zip(vocabulary, types, strict=True) if kind == _CONTROL_TOKEN]
    merges = [_merge(str(line)) for line in file.items("tokenizer.ggml.merges")]
    tokenizer = _byte_level_tokenizer(vocabulary, merges, special, split_digits=True)
    bos = vocabulary[file.integer("tokenizer.ggml.bos_token_id")]
    eos = vocabulary[file.integer("tokenizer.ggml.eos_token_id")]
    if file.flag("tokenizer.ggml.add_bos_token"):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], special_tokens=[(bos, vocabulary.index(bos))]
        )
    return TextAssets(
        tokenizer=tokenizer,
        chat_template=file.text("tokenizer.chat_template"),
        bos_token=bos,
        eos_token=eos,
        stop_token_ids=frozenset(vocabulary.index(token) for token in {eos, "<|endoftext|>"}),
    )


def _merge(line: str) -> tuple[str, str]:
    left, _, right = line.partition(" ")
    return left, right


def byte_level_text(vocab_size: int) -> TextAssets:
    """All bytes, the ChatML marks, and pairs of frequent letters up to ``vocab_size``: each id decodes to something."""
    end_of_text, turn_start, turn_end = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
    special = [end_of_text, turn_start, turn_end]
    letters = "etaoinshrdlcumwf"
    pairs = [(left, right) for left in letters for right in letters]
    base = sorted(pre_tokenizers.ByteLevel.alphabet()) + special
    merges = pairs[: vocab_size - len(base)]
    vocabulary = base + [left + right for left, right in merges]
    if len(vocabulary) != vocab_size:
        raise ConfigError(f"a byte-level vocabulary has between {len(base)} and {len(base) + len(pairs)} tokens")
    return TextAssets(
        tokenizer=_byte_level_tokenizer(vocabulary, merges, special, split_digits=False),
        chat_template=_CHATML_TEMPLATE,
        bos_token=None,
        eos_token=turn_end,
        stop_token_ids=frozenset(vocabulary.index(token) for token in (end_of_text, turn_end)),
    )


def _byte_level_tokenizer(
    vocabulary: list[str], merges: list[tuple[str, str]], special: list[str], *, split_digits: bool
) -> Tokenizer:
    tokenizer = Tokenizer(BPE(vocab={token: index for index, token in enumerate(vocabulary)}, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if split_digits else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    added = [AddedToken(token, special=True, normalized=False) for token in special]
    tokenizer.add_special_tokens(added)  # pyright: ignore[reportUnknownMemberType]  # its stub says just "list"
    return tokenizer
