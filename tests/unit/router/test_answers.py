"""Answers' token IDs come back in the next turn exactly as they were generated."""

import asyncio
import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.core.ids import TenantId
from pdd.core.request import FinishReason
from pdd.engine.catalog import find_model
from pdd.engine.models.text import TextAssets
from pdd.router.api.answers import AnswerMemory, AnswerTokens, ConversationEncoder, PromptDigest
from pdd.router.api.messages import Message
from pdd.router.api.text import AnswerText
from pdd.router.api.tokenizer import TextCodec

ASSETS = find_model("scripted").load_text()
CODEC = TextCodec(ASSETS)
VOCAB_SIZE = find_model("scripted").vocab_size
TENANT, OTHER = TenantId("tenant"), TenantId("other")
TURN_END = ASSETS.tokenizer.token_to_id("<|im_end|>")
END_OF_TEXT = ASSETS.tokenizer.token_to_id("<|endoftext|>")

GENERATED = st.lists(
    st.integers(0, VOCAB_SIZE - 1).filter(lambda token: token not in ASSETS.stop_token_ids), max_size=12
)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One generated answer: its tokens, the stop token that ended it (if one did), the stop strings in force."""

    question: str
    tokens: list[int]
    end: int | None
    stops: list[str]


TURNS = st.lists(
    st.builds(
        Turn,
        question=st.text(max_size=6),
        tokens=GENERATED,
        end=st.sampled_from([None, TURN_END, END_OF_TEXT]),
        stops=st.lists(st.sampled_from(["a", "t", "\ufffd", "et"]), max_size=1),
    ),
    min_size=1,
    max_size=5,
)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def assistant(text: str) -> Message:
    return Message(role="assistant", content=text)


def encode(encoder: ConversationEncoder, messages, tenant=TENANT) -> tuple[int, ...]:
    return asyncio.run(encoder.encode(tenant, messages))


def plain(messages) -> tuple[int, ...]:
    """What the conversation tokenizes to without any memory."""
    return encode(ConversationEncoder(CODEC, AnswerMemory(max_tokens_per_tenant=0)), messages)


def generate(turn: Turn) -> tuple[str, AnswerTokens]:
    """The text that the client sees of a turn's answer and what is remembered of it, as the front door does it."""
    answer = AnswerText(CODEC.detokenizer(), turn.stops)
    answer.push(turn.tokens if turn.end is None else [*turn.tokens, turn.end])
    answer.finish()
    return answer.text, answer.answer_tokens(ended_by=turn.end)


@given(turns=TURNS)
def test_each_prompt_starts_with_the_previous_prompt_and_its_answers_remembered_tokens(turns):
    memory = AnswerMemory(max_tokens_per_tenant=1000)
    encoder = ConversationEncoder(CODEC, memory)
    messages, expected = [], ()
    for turn in turns:
        messages.append(user(turn.question))
        prompt = encode(encoder, messages)
        assert prompt[: len(expected)] == expected
        text, remembered = generate(turn)
        memory.keep(TENANT, prompt, text, remembered)
        messages.append(assistant(text))
        expected = (*prompt, *remembered.tokens)


@given(turns=TURNS)
def test_an_answer_that_was_not_cut_is_extended_with_all_its_tokens(turns):
    """Without stop strings the remembered tokens are all that were generated, up to the token that ended the answer."""
    memory = AnswerMemory(max_tokens_per_tenant=1000)
    encoder = ConversationEncoder(CODEC, memory)
    messages, expected = [], ()
    for turn in turns:
        messages.append(user(turn.question))
        prompt = encode(encoder, messages)
        assert prompt[: len(expected)] == expected
        text, remembered = generate(Turn(question="", tokens=turn.tokens, end=turn.end, stops=[]))
        memory.keep(TENANT, prompt, text, remembered)
        messages.append(assistant(text))
        # ChatML itself ends a turn with <|im_end|>, so that one, too, is found again by whoever cached it.
        ended = (TURN_END,) if turn.end == TURN_END else ()
        expected = (*prompt, *turn.tokens, *ended)


@given(turns=TURNS)
def test_a_spliced_prompt_reads_like_the_unspliced_one(turns):
    """The memory changes token IDs, never what the model reads."""
    memory = AnswerMemory(max_tokens_per_tenant=1000)
    encoder = ConversationEncoder(CODEC, memory)
    messages = []
    for turn in turns:
        messages.append(user(turn.question))
        prompt = encode(encoder, messages)
        valid = [message for message in messages if "\ufffd" not in message.content]
        if len(valid) == len(messages):
            assert ASSETS.tokenizer.decode(list(prompt)) == ASSETS.tokenizer.decode(list(plain(messages)))
        text, remembered = generate(turn)
        memory.keep(TENANT, prompt, text, remembered)
        messages.append(assistant(text))


def remember(text_tokens: list[int], *, max_tokens: int = 100):
    """A memory with one answer to "question"; returns it with its encoder, the prompt and the answer's text."""
    memory = AnswerMemory(max_tokens_per_tenant=max_tokens)
    encoder = ConversationEncoder(CODEC, memory)
    prompt = encode(encoder, [user("question")])
    text, remembered = generate(Turn(question="", tokens=text_tokens, end=TURN_END, stops=[]))
    memory.keep(TENANT, prompt, text, remembered)
    return memory, encoder, prompt, text


ODD = [ASSETS.tokenizer.token_to_id(letter) for letter in "tentative"]
"""Single letters that tokenizing would merge into pairs."""


def test_tokens_that_do_not_round_trip_through_text_are_spliced():
    _, encoder, prompt, text = remember(ODD)
    messages = [user("question"), assistant(text), user("next")]
    assert encode(encoder, messages)[: len(prompt) + len(ODD)] == (*prompt, *ODD)
    assert plain(messages)[: len(prompt) + len(ODD)] != (*prompt, *ODD)


def test_an_edited_answer_is_not_spliced():
    _, encoder, _, text = remember(ODD)
    for edited in (text + "!", text[:-1], text.upper(), " " + text):
        messages = [user("question"), assistant(edited), user("next")]
        assert encode(encoder, messages) == plain(messages)


def test_the_same_answer_to_another_question_is_not_spliced():
    _, encoder, _, text = remember(ODD)
    messages = [user("another question"), assistant(text), user("next")]
    assert encode(encoder, messages) == plain(messages)


def test_another_tenants_answer_is_not_spliced():
    _, encoder, _, text = remember(ODD)
    messages = [user("question"), assistant(text), user("next")]
    assert encode(encoder, messages, OTHER) == plain(messages)


def test_a_second_answer_with_the_same_text_does_not_replace_the_first():
    memory, encoder, prompt, text = remember(ODD)
    retokenized = tuple(ASSETS.tokenizer.encode(text, add_special_tokens=False).ids)
    memory.keep(TENANT, prompt, text, AnswerTokens(tokens=retokenized, num_characters=len(text)))
    messages = [user("question"), assistant(text), user("next")]
    assert encode(encoder, messages)[: len(prompt) + len(ODD)] == (*prompt, *ODD)


def digest_of(*tokens: int) -> PromptDigest:
    digest = PromptDigest()
    digest.extend(tokens)
    return digest


def kept(memory: AnswerMemory, number: int) -> AnswerTokens | None:
    return memory.find(TENANT, digest_of(number), f"answer {number}")


def keep(memory: AnswerMemory, number: int, num_tokens: int) -> None:
    answer = AnswerTokens(tokens=(number,) * num_tokens, num_characters=0)
    memory.keep(TENANT, (number,), f"answer {number}", answer)


def test_the_memory_forgets_the_least_recently_used_answers_beyond_its_bound():
    memory = AnswerMemory(max_tokens_per_tenant=10)
    for number in (1, 2, 3):
        keep(memory, number, 3)
    assert kept(memory, 1) is not None
    keep(memory, 4, 3)
    assert kept(memory, 2) is None
    assert all(kept(memory, number) for number in (1, 3, 4))
    assert memory.num_tokens(TENANT) == 9
    assert not memory.may_hold(TENANT, "answer 2")


def test_an_answer_larger_than_the_memory_is_not_kept_and_displaces_nothing():
    memory = AnswerMemory(max_tokens_per_tenant=10)
    keep(memory, 1, 3)
    keep(memory, 2, 11)
    assert kept(memory, 1) is not None
    assert kept(memory, 2) is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), max_size=40))
def test_the_memory_never_exceeds_its_bound(answers):
    memory = AnswerMemory(max_tokens_per_tenant=10)
    for number, num_tokens in answers:
        keep(memory, number, num_tokens)
        assert memory.num_tokens(TENANT) <= 10
        assert memory.num_tokens(OTHER) == 0


def test_a_digest_grows_piece_by_piece_and_copies_are_independent():
    pieces = digest_of(1)
    twin = pieces.copy()
    pieces.extend([2, 3])
    assert pieces.answered_by("x") == digest_of(1, 2, 3).answered_by("x")
    assert twin.answered_by("x") == digest_of(1).answered_by("x")
    assert twin.answered_by("x") != twin.answered_by("y")


def test_a_template_that_refuses_a_question_alone_only_prevents_the_splice():
    template = (
        "{% if messages | length == 1 %}{{ raise_exception('too few') }}{% endif %}"
        "{% for message in messages %}{{ message['content'] }};{% endfor %}"
    )
    assets = TextAssets(
        tokenizer=ASSETS.tokenizer,
        chat_template=template,
        bos_token=None,
        eos_token=None,
        stop_token_ids=frozenset(),
    )
    memory = AnswerMemory(max_tokens_per_tenant=10)
    memory.keep(TENANT, (1,), "answer", AnswerTokens(tokens=(2,), num_characters=6))
    codec = TextCodec(assets)
    found = encode(ConversationEncoder(codec, memory), [user("q"), assistant("answer")])
    assert found == tuple(ASSETS.tokenizer.encode("q;answer;").ids)


def test_an_answer_that_the_template_rewrites_is_not_spliced():
    """Where earlier answers are trimmed, say, the model shall read them trimmed."""
    assets = replace(ASSETS, chat_template="{% for message in messages %}{{ message['content'] | trim }};{% endfor %}")
    codec, memory = TextCodec(assets), AnswerMemory(max_tokens_per_tenant=10)
    encoder = ConversationEncoder(codec, memory)
    question = encode(encoder, [user("q")])
    memory.keep(TENANT, question, " kept ", AnswerTokens(tokens=(7,), num_characters=6))
    memory.keep(TENANT, question, "kept", AnswerTokens(tokens=(8,), num_characters=4))
    assert encode(encoder, [user("q"), assistant(" kept ")]) == tuple(ASSETS.tokenizer.encode("q;kept;").ids)
    assert encode(encoder, [user("q"), assistant("kept")])[: len(question) + 1] == (*question, 8)


@dataclass
class CountingCodec:
    """Counts the messages that it renders."""

    num_rendered: int = 0

    def mask(self, message):
        return CODEC.mask(message)

    def render_chat(self, messages) -> str:
        self.num_rendered += len(messages)
        return CODEC.render_chat(messages)

    async def encode(self, text: str) -> tuple[int, ...]:
        return await CODEC.encode(text)


def test_however_often_an_answer_is_repeated_the_search_for_it_costs_little():
    memory, codec = AnswerMemory(max_tokens_per_tenant=100), CountingCodec()
    messages = [user("q"), assistant("x")]
    memory.keep(TENANT, plain(messages[:1]), "x", AnswerTokens(tokens=(7,), num_characters=1))
    prompt = encode(ConversationEncoder(codec, memory), messages * 1000)
    assert codec.num_rendered < 70_000
    asked = plain(messages[:1])
    assert prompt[: len(asked) + 1] == (*asked, 7), "the first ones are found all the same"


def test_a_finish_reason_is_kept_unless_a_stop_string_came_first():
    answer = AnswerText(CODEC.detokenizer(), [])
    assert answer.finish_reason(FinishReason.LENGTH) is FinishReason.LENGTH


@pytest.mark.real_model
def test_a_real_models_conversation_is_extended_turn_by_turn():
    """SmolLM2's template adds a system message of its own; answers end by stop token, by length and by stop string."""
    entry = find_model("smollm2-135m-instruct")
    codec, memory = TextCodec(entry.load_text()), AnswerMemory(max_tokens_per_tenant=10_000)
    encoder, draw = ConversationEncoder(codec, memory), random.Random(7)
    (turn_end,) = asyncio.run(codec.encode("<|im_end|>"))
    messages, expected = [], ()
    for turn in range(12):
        messages.append(user(f"Question {turn}: where is 漢字?\n"))
        prompt = encode(encoder, messages)
        assert prompt[: len(expected)] == expected
        tokens = [draw.randrange(17, entry.vocab_size) for _ in range(40)]
        answer = AnswerText(codec.detokenizer(), [["e", "ing"][turn % 2]] if turn % 3 == 2 else [])
        ended = turn % 3 == 0
        answer.push([*tokens, turn_end] if ended else tokens)
        answer.finish()
        remembered = answer.answer_tokens(ended_by=turn_end if ended else None)
        assert answer.stopped or list(remembered.tokens) == tokens
        memory.keep(TENANT, prompt, answer.text, remembered)
        messages.append(assistant(answer.text))
        expected = (*prompt, *remembered.tokens, *((turn_end,) if ended else ()))
