"""Conversations: what turns have in common is computed once, counted in tokens that go through a prefill."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from support.fakes.chat_engine import (
    OPTIONS,
    PLAIN,
    QUESTIONS,
    QWEN,
    SYSTEM,
    TEMPLATES,
    answer,
    engine_of,
    prefilled,
    random_engine,
)
from support.fakes.engine import assert_settled
from support.marks import slow_after
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Engine, Options, Sampling
from trigraph.runtime.cache.identity import ModelIdentity
from trigraph.runtime.cli.chat import Terminal
from trigraph.runtime.engine.chat import Conversation, Reply
from trigraph.runtime.scheduler.model import Model


def common(a: Iterable[int], b: Iterable[int]) -> int:
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count


def finish(reply: Reply) -> str:
    return "".join(reply)


def held(chat: Conversation) -> list[int]:
    """The text that the conversation has computed."""
    assert chat._last is not None
    return chat._last.tokens


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_what_five_turns_have_in_common_is_computed_once(template: str) -> None:
    engine, model = engine_of(template)
    chat = engine.chat(SYSTEM)
    computed: list[int] = []
    total = 0
    for turn, question in enumerate(QUESTIONS):
        reply = chat.say(question, OPTIONS)
        finish(reply)
        prompt = reply.request.prompt
        expected = len(prompt) - common(computed, prompt)
        count = prefilled(model)
        assert count == expected, turn
        assert reply.request.stats.prompt_tokens == count
        assert reply.request.stats.prompt_tokens + reply.request.stats.reused_tokens == len(prompt)
        assert engine.tokenizer.spell(prompt) == chat._template.render(chat.messages[:-1])
        computed = held(chat)
        total += count
    text = chat._template.render(chat.messages, add_generation_prompt=False)
    if template == PLAIN:
        # Everything was computed once, the answers in rounds of decoding.
        assert total + sum(len(answer(turn, False)) - 1 for turn in range(5)) == len(computed)
    else:
        assert text.count("hmm") == 1, "the template cuts reasoning"
    # Without states the same conversation would have computed each prompt.
    assert total < 0.45 * sum(
        len(engine.tokenizer.encode(chat._template.render(chat.messages[: 2 * n]))) for n in range(1, 6)
    )
    assert_settled(engine)


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_a_reset_keeps_the_system_message(template: str) -> None:
    engine, model = engine_of(template)
    chat = engine.chat(SYSTEM)
    finish(chat.say(QUESTIONS[0], OPTIONS))
    finish(chat.say(QUESTIONS[1], OPTIONS))
    prefilled(model)
    chat.reset()
    assert chat.messages == [{"role": "system", "content": SYSTEM}]
    reply = chat.say("Something else", OPTIONS)
    assert finish(reply).endswith("On the hill."), "the conversation was not forgotten"
    common_text = engine.tokenizer.encode(f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n")
    assert reply.request.stats.reused_tokens == len(common_text)
    assert prefilled(model) == len(reply.request.prompt) - len(common_text)


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_another_answer_to_the_same_question(template: str) -> None:
    engine, model = engine_of(template)
    chat = engine.chat(SYSTEM)
    with pytest.raises(TrigraphError, match="no question to answer again"):
        chat.regenerate()
    for question in QUESTIONS[:3]:
        first = finish(chat.say(question, OPTIONS))
        messages = list(chat.messages)
        prefilled(model)
        assert finish(chat.regenerate(OPTIONS)) == first
        assert chat.messages == messages
        assert prefilled(model) == 0


def test_a_conversation_with_one_state_only() -> None:
    """Where a program keeps room for one text, the system message has no state of its own."""
    engine, _ = engine_of(QWEN, sequences=1)
    chat = engine.chat(SYSTEM)
    for question in QUESTIONS:
        finish(chat.say(question, OPTIONS))
    assert_settled(engine)


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_a_saved_conversation_goes_on(template: str, tmp_path: Path) -> None:
    engine, model = engine_of(template)
    chat = engine.chat(SYSTEM)
    with pytest.raises(TrigraphError, match="no conversation to save yet"):
        engine.chat().save(tmp_path / "chat")
    for question in QUESTIONS[:3]:
        finish(chat.say(question, OPTIONS))
    chat.save(tmp_path / "chat")
    prefilled(model)
    expected = chat.say(QUESTIONS[3], OPTIONS)
    finish(expected)
    needed = prefilled(model)
    engine.cache.clear()
    other = engine.chat()
    finish(other.say("Something else", OPTIONS))
    other.load(tmp_path / "chat")
    assert other.messages == chat.messages[:-2]
    prefilled(model)
    reply = other.say(QUESTIONS[3], OPTIONS)
    finish(reply)
    assert (reply.request.ids, prefilled(model)) == (expected.request.ids, needed)
    other.reset()
    assert finish(other.say(QUESTIONS[0], OPTIONS)).endswith("On the hill.")
    assert prefilled(model) < len(SYSTEM)
    assert_settled(engine)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("seed", slow_after(4, range(40)))
def test_a_loaded_conversation_goes_on_like_the_unsaved_one(seed: int, kept: bool, tmp_path: Path) -> None:
    """By tokens, which the tokenizer would choose otherwise; with and without state that is still there to save."""
    engine = random_engine()
    chat, other = engine.chat(SYSTEM), engine.chat()
    sampling = Sampling(temperature=1.0, seed=seed)
    for question in QUESTIONS[: 1 + seed % 2]:
        finish(chat.say(question, Options(sampling, max_tokens=20)))
    if not kept:
        engine._driver.call(engine.cache.clear)
    chat.save(tmp_path / "chat")
    other.load(tmp_path / "chat")
    assert other.messages == chat.messages
    assert other.length == chat.length
    expected, found = (talk.say(QUESTIONS[2], Options(sampling, max_tokens=5)) for talk in (chat, other))
    assert found.request.prompt == expected.request.prompt
    again, first = other.regenerate(Options(sampling)), chat.regenerate(Options(sampling))
    assert again.request.prompt == first.request.prompt
    finish(expected)
    finish(found)
    assert found.request.ids == expected.request.ids


def test_a_conversation_of_another_model(tmp_path: Path) -> None:
    engine, _ = engine_of(QWEN)
    chat = engine.chat()
    finish(chat.say(QUESTIONS[0], OPTIONS))
    chat.save(tmp_path / "chat")
    stranger = Engine(Model(engine.steps, engine.tokenizer, engine.model.template, identity=ModelIdentity("stranger")))
    with pytest.raises(TrigraphError, match=r"saved with the model 'fake' .* and this is 'stranger'"):
        stranger.chat().load(tmp_path / "chat")
    with pytest.raises(TrigraphError, match="holds a conversation"):
        engine.generate("text", OPTIONS, tmp_path / "chat")
    engine.generate("text", OPTIONS, tmp_path / "prompt").run()
    with pytest.raises(TrigraphError, match="holds a prompt and no conversation"):
        chat.load(tmp_path / "prompt")
    assert finish(chat.say(QUESTIONS[1], OPTIONS)).endswith("he and she"), "a refusal spoils nothing"


Say = Callable[..., str]


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Say:
    """`terminal("hello", "/stats")`: what a chat writes to stdout and stderr after these lines."""
    engine, _ = engine_of(PLAIN)
    chat = Terminal(engine, OPTIONS, engine.chat(SYSTEM))

    def take(*lines: str) -> str:
        for line in lines:
            try:
                chat.take(line)
            except TrigraphError as error:
                print(f"error: {error}")
        output = capsys.readouterr()
        return output.out + output.err

    return take


def test_commands(terminal: Say, tmp_path: Path) -> None:
    listed = terminal("/help")
    assert all(f"/{name}" in listed for name in ("regen", "reset", "save FILE", "load FILE", "stats", "help", "exit"))
    assert "no reply yet" in terminal("/stats")
    assert "On the hill." in terminal(QUESTIONS[0])
    assert "he and she" in terminal(QUESTIONS[1], f"/save {tmp_path / 'a chat'}")
    assert "5 messages" in terminal("/stats")
    assert "he and she" in terminal("/regen")
    assert "On the hill." in terminal("/reset", QUESTIONS[0])
    assert "5 messages" in terminal(f"/load {tmp_path / 'a chat'}")
    answered = terminal(QUESTIONS[2])
    assert "the time" in answered
    assert "reused" in answered


def test_a_full_context_forgets_the_oldest_questions(capsys: pytest.CaptureFixture[str]) -> None:
    engine, _ = engine_of(PLAIN, context=200)
    conversation = engine.chat(SYSTEM)
    chat = Terminal(engine, Options(sampling=OPTIONS.sampling), conversation)
    for question in QUESTIONS:
        chat.take(question)
    told = capsys.readouterr().err
    assert "note: the context is full; the oldest " in told
    assert conversation.messages[0]["role"] == "system" and conversation.messages[1]["content"] != QUESTIONS[0]
    assert conversation.messages[-2]["content"] == QUESTIONS[-1]
    kept = conversation.messages
    with pytest.raises(TrigraphError, match=r"must have 1 to 200, .*larger context; /reset starts over"):
        chat.take("x" * 300)
    assert conversation.messages == kept, "what never fits forgets nothing"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("/fly", "/fly: unknown command; /help lists them"),
        ("/save", "/save: give a file name after it"),
        ("/reset now", "/reset: it takes no argument"),
        ("/load {tmp}/missing", "missing: cannot be read"),
        ("/load {tmp}", "is not a file"),
        ("/save {tmp}/none/chat", "there is no conversation"),
        ("/regen", "there is no question"),
    ],
)
def test_mistakes_in_commands(terminal: Say, tmp_path: Path, line: str, text: str) -> None:
    if "there is no conversation" in text:
        terminal("/reset")
    found = terminal(line.format(tmp=tmp_path))
    assert found.startswith("error: ") or "conversation" in text
    assert text in found or "cannot be written" in found


def test_what_only_looks_like_a_command(terminal: Say) -> None:
    for line in ("/etc/hosts: what is it?", " /reset is a word"):
        assert "generated" in terminal(line)
    assert "5 messages" in terminal("/stats")
