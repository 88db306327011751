"""Small vocabularies, one for each kind of decoder that published tokenizers have."""

from tokenizers import AddedToken, Regex, Tokenizer, decoders
from tokenizers.models import WordLevel

BLANK = "▁"
SPECIAL, ADDED = "<s>", "<think> é"
UNKNOWN_ID = 100_000
WORDS = (
    *("a", "b", "ab", "▁", "▁▁", "▁a", "a▁b", "##b", "a##", "ab</w>", "</w>", "é</w>", "a</w>b</w>", "é", "漢", "🎉"),
    *(" ", "  ", " a", ".", "'", "n't", " do not", "\ufffd", "_", "__b", "<0xZZ>", "<0x0>"),
)
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
LLAMA = [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]

OF_WORDS = {
    "none": None,
    "replace": decoders.Replace(Regex("_+"), " "),
    "strip_each": decoders.Strip(" ", 1, 0),
    "metaspace": decoders.Metaspace(),
    "metaspace_never": decoders.Metaspace(prepend_scheme="never"),
    "word_piece": decoders.WordPiece(),
    "word_piece_as_it_is": decoders.WordPiece("##", cleanup=False),
    "bpe": decoders.BPEDecoder(),
    "fuse": decoders.Fuse(),
    "fuse_strip": decoders.Sequence([decoders.Metaspace(), decoders.Fuse(), decoders.Strip(" ", 2, 0)]),
}
OF_BYTE_TOKENS = {
    "byte_fallback": decoders.ByteFallback(),
    "llama": decoders.Sequence(LLAMA),
    "gemma": decoders.Sequence(LLAMA[:3]),
    "nested": decoders.Sequence([decoders.Sequence(LLAMA[:2]), decoders.Sequence(LLAMA[2:])]),
    "replaced_in_the_text": decoders.Sequence([LLAMA[1], LLAMA[2], LLAMA[0], LLAMA[3]]),
    "replaced_in_runs": decoders.Sequence([LLAMA[1], LLAMA[0]]),
    "metaspace_first": decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback()]),
    "metaspace_last": decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(), decoders.Fuse()]),
}
BYTE_LEVEL = {
    "byte_level": decoders.ByteLevel(),
    "byte_level_strip": decoders.Sequence([decoders.ByteLevel(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
}


def tokenizer_of(decoder: decoders.Decoder | None, words: tuple[str, ...]) -> Tokenizer:
    """Each of ``words`` is one token, by its place; then come a special token and one that was added without being
    special.
    """
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token=words[0]))
    if decoder is not None:
        tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken(SPECIAL, special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken(ADDED, special=False, normalized=False)])
    return tokenizer


def byte_level_word(data: bytes) -> str:
    """``data`` as GPT-2 writes it: bytes that can be shown as themselves, the others from U+0100 on."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return "".join(chr(byte) if byte in shown else chr(256 + hidden.index(byte)) for byte in data)
