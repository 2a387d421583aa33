"""Chats with a model that may call functions.

Usage: python examples/chat_tools.py MODEL.gguf "What is the weather in Oslo?"
"""

import json
import sys
from collections.abc import Iterator

from trigraph import Engine, load

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city today.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def get_weather(city: str) -> str:
    return json.dumps({"city": city, "celsius": 7, "sky": "clear"})


def answer(engine: Engine, question: str) -> Iterator[str]:
    """The model's replies, with the functions that it calls in between."""
    conversation = engine.chat("Answer in one sentence.", tools=TOOLS)
    yield from conversation.say(question)
    while conversation.calls:
        arguments = [json.loads(call["function"]["arguments"]) for call in conversation.calls]
        yield from conversation.give([get_weather(**given) for given in arguments])


def main(model: str, question: str) -> None:
    for text in answer(load(model), question):
        print(text, end="", flush=True)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
