"""What agents and chats send again and again, over HTTP's messages: which tokens of their prompts are computed."""

from collections.abc import Callable

import pytest

from support.fakes.chat_engine import OPTIONS, QUESTIONS, SYSTEM, TEMPLATES, engine_of
from trigraph.runtime.cache.prefix import common_prefix
from trigraph.runtime.server.app import ServedModel
from trigraph.runtime.server.prompt import ChatPrompt, chat_prompt
from trigraph.runtime.server.settings import Settings
from trigraph.runtime.text.template import Message

DOCUMENT = "A long document. " * 20
TOOLS = " Tools: " + "read(file). write(file, text). " * 4
templates = pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)


class Client:
    """Sends messages, and keeps the ids of each prompt with how many of them were found in the cache."""

    def __init__(self, template: str) -> None:
        self.engine, _ = engine_of(template, context=3000)
        self.prompts: list[list[int]] = []
        self.reused: list[int] = []

    def prompt(self, *messages: Message) -> ChatPrompt:
        """The prompt for these messages."""
        return chat_prompt(ServedModel(self.engine, Settings()), messages)

    def ask(self, *messages: Message) -> str:
        """The reply to these messages."""
        prompt = self.prompt(*messages)
        request = self.engine.generate(prompt.ids, OPTIONS, checkpoints=prompt.checkpoints)
        text = request.run()
        self.prompts.append(prompt.ids)
        self.reused.append(request.stats.reused_tokens)
        return text


def message(role: str) -> Callable[[str], Message]:
    return lambda content: {"role": role, "content": content}


user, assistant, system = (message(role) for role in ("user", "assistant", "system"))


@templates
def test_a_growing_conversation(template: str) -> None:
    """Nothing is computed again of what one prompt has in common with the one before, thoughts cut or not."""
    client, messages = Client(template), [system(SYSTEM)]
    for question in QUESTIONS:
        messages.append(user(question))
        messages.append(assistant(client.ask(*messages)))
    pairs = zip(client.prompts, client.prompts[1:], strict=False)
    assert client.reused[0] == 0
    assert client.reused[1:] == [common_prefix(before, prompt) for before, prompt in pairs]


@templates
def test_an_edited_last_turn(template: str) -> None:
    client = Client(template)
    first = [system(SYSTEM), user("Where?")]
    first.append(assistant(client.ask(*first)))
    client.ask(*first, user("Who?"))
    client.ask(*first, user("No, when?"))
    assert client.reused[1:] == [common_prefix(client.prompts[0], client.prompts[1])] * 2


@templates
def test_tools_that_are_appended(template: str) -> None:
    """Where two lists of tools part is known from the second on, so the third one goes on from there."""
    client = Client(template)
    for tool in ("", "search(text).", "list(folder)."):
        client.ask(system(SYSTEM + TOOLS + tool), user("Where?"))
    assert client.reused == [0, 0, common_prefix(client.prompts[0], client.prompts[1])]
    assert client.reused[2] > len(SYSTEM + TOOLS)


@templates
def test_questions_about_one_document(template: str) -> None:
    client = Client(template)
    for question in ("Where?", "And who?", "Is it?", "Of what?", "The end?"):
        client.ask(user(DOCUMENT + question))
    shared = common_prefix(client.prompts[0], client.prompts[1])
    assert client.reused == [0, 0, shared, shared, shared]
    assert shared > len(DOCUMENT)


@templates
def test_clients_with_one_system_prompt_at_once(template: str) -> None:
    """The first computes it, and the others wait for that."""
    client = Client(template)
    prompts = [client.prompt(system(SYSTEM), user(question)) for question in QUESTIONS]
    requests = [client.engine.generate(prompt.ids, OPTIONS, checkpoints=prompt.checkpoints) for prompt in prompts]
    for request in requests:
        request.begin()
    for request in requests:
        request.result()
    shared = common_prefix(prompts[0].ids, prompts[2].ids)
    assert shared > len(SYSTEM)
    assert requests[0].stats.reused_tokens == 0
    assert all(request.stats.reused_tokens >= shared for request in requests[1:])
