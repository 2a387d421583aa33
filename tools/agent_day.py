"""An agent's day: long conversations with tools, against a server, and how much of it is computed twice.

    python tools/agent_day.py
    python tools/agent_day.py --turns 20 --scenarios kept memory
    python tools/agent_day.py --server http://127.0.0.1:8080 --words 1000 3000 --peer http://127.0.0.1:8081

Scripted agents call tools whose results have --words words. Between, the user asks something else, the date in the
system message changes, and titles are asked for. They send their reasoning back or drop it, come one at a time or three
at once, find too little memory, or a server that was started again. Without --server, servers are this checkout's own,
of the tiny model with the control tokens and a template of Qwen's.

A prompt's necessary tokens are those after the longest beginning that it has in common with an earlier one. The status
is 1 where more than 1.05 times as many were computed with enough memory, or a completion differs from what the same
request gets alone. After a restart each conversation may also compute again what takes a second: that is worth no file.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx2 as httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from agent_apis import APIS, Reply, ask

from support.models.agent_model import write_agent_model
from support.servers.scripted import served_by_command, serving
from trigraph.runtime import load
from trigraph.runtime.cache.prefix import common_prefix

MOST = 1.05  # times the necessary tokens
ASKS_EVERY, TITLE_EVERY = 12, 10  # turns
CONTEXT, TOKEN_BYTES = 65536, 1024  # of the tiny model's keys and values
WORDS = ["And", "it", "came", "to", "pass", "when", "the", "king", "heard", "words", "of", "captain", "unto", "them"]
SYSTEM = {"role": "system", "content": " ".join(["You work in a folder of texts, with tools."] + WORDS * 6)}
PATHS = ["kings.txt", "psalms.txt", "ruth.txt", "emma.txt"]
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string", "enum": PATHS}}, "required": ["path"]}
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": f"{name}: {' '.join(WORDS)}", "parameters": PARAMETERS},
    }
    for name in ("read_file", "list_words", "count_lines")
]


@dataclass(frozen=True)
class Scenario:
    """How a part of the day goes."""

    what: str
    agents: tuple[str, ...]
    """The API that each one uses; all work at once."""
    kept: bool = False
    """Whether they send their reasoning back."""
    memory: float | None = None
    """The part of the KV pages of all conversations that there is."""
    restart: bool = False
    """Whether the server is started again in the middle."""


SCENARIOS = {
    "kept": Scenario("reasoning kept", ("messages",), kept=True),
    "dropped": Scenario("reasoning dropped", ("chat",)),
    "responses": Scenario("reasoning dropped", ("responses",)),
    "three": Scenario("three at once", ("messages", "chat", "responses"), kept=True),
    "memory": Scenario("three at once, memory for 60 %", ("messages", "chat", "responses"), kept=True, memory=0.6),
    "restart": Scenario("a restart in the middle", ("messages", "chat", "responses"), kept=True, restart=True),
}


@dataclass
class Sent:
    """A request and what came of it."""

    api: str
    body: dict[str, Any]
    reply: Reply
    necessary: int
    short: bool


@dataclass
class Day:
    """A scenario against a server, and what was sent."""

    scenario: Scenario
    options: argparse.Namespace
    address: str = ""
    sent: list[Sent] = field(default_factory=list)
    odd: set[str] = field(default_factory=set)
    """What was noticed."""
    _prompts: list[list[int]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def work(self, first: int, last: int, agents: list[Agent]) -> None:
        """These turns of all agents, at once."""
        with ThreadPoolExecutor(len(agents)) as at_once:
            for done in [at_once.submit(agent.work, first, last) for agent in agents]:
                done.result()

    def ask(
        self,
        api: str,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        *,
        must_call: bool,
        short: bool = False,
    ) -> dict[str, Any]:
        """Sends a request; the message that comes back."""
        body = APIS[api].body(messages, tools, must_call)
        limits = {"max_tokens": 12, "reasoning_budget": 0} if short else {"max_tokens": 96, "reasoning_budget": 16}
        if self.options.server is not None and not short:
            limits = {"max_tokens": 512}
        if api == "responses":
            limits["max_output_tokens"] = limits.pop("max_tokens")
        body |= {"model": self.options.model_name, "temperature": 0, "stream": True, **limits}
        prompt = self._prompt(messages, tools)
        with self._lock:
            common = max((common_prefix(prompt, other) for other in self._prompts), default=0)
            self._prompts.append(prompt)
        reply = ask(self.address, api, body)
        if reply.prompt != len(prompt):
            self.odd.add(f"{api}: prompts have {reply.prompt - len(prompt):+} tokens beside their chat template's")
        with self._lock:
            self.sent.append(Sent(api, body, reply, len(prompt) - common, short))
        return reply.message

    def _prompt(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[int]:
        text = _post(f"{self.address}/apply-template", {"messages": messages, "tools": tools})["prompt"]
        tokens: list[int] = _post(f"{self.address}/tokenize", {"content": text, "add_special": True})["tokens"]
        return tokens

    def report(self) -> bool:
        """Prints a line; whether not too much was computed."""
        computed = sum(each.reply.prompt - each.reply.cached for each in self.sent)
        necessary, most = sum(each.necessary for each in self.sent), self._most()
        times = [sorted(each.reply.first for each in self.sent if each.short == short) for short in (False, True)]
        told = [f"{median(of):.3f} to {of[-1]:.3f} s" if of else "none" for of in times]
        print(
            f"{self.scenario.what} ({', '.join(self.scenario.agents)}): {len(self.sent)} requests, "
            f"{computed:,} tokens computed, {necessary:,} necessary: {computed / max(1, necessary):.3f}"
            f"{'' if most == math.inf else f', at most {most:,.0f}'}; "
            f"first token, median to longest: turns {told[0]}, titles {told[1]}",
            flush=True,
        )
        for note in sorted(self.odd):
            print(f"  {note}")
        return computed <= most

    def _most(self) -> float:
        """Tokens that may be computed."""
        if self.scenario.memory is not None:
            return math.inf
        most = MOST * sum(each.necessary for each in self.sent)
        if self.scenario.restart:
            speed = max((each.reply.prompt - each.reply.cached) / each.reply.first for each in self.sent)
            most += speed * len(self.scenario.agents)
        return most

    def beside(self, peer: str) -> None:
        """Sends the same to another server, one after the other."""
        try:
            replies = [ask(peer, each.api, each.body) for each in self.sent]
        except SystemExit as refused:
            print(f"  {peer}: {refused}", flush=True)
            return
        computed, firsts = sum(each.prompt - each.cached for each in replies), sorted(each.first for each in replies)
        longer = sum(each.prompt for each in replies) - sum(each.reply.prompt for each in self.sent)
        print(
            f"  {peer}: {computed:,} tokens computed, of prompts with {longer:+,} tokens in all; "
            f"first token {median(firsts):.3f} to {firsts[-1]:.3f} s"
        )

    def differing(self, model: Path) -> int:
        """How many completions differ from what an engine with an empty cache says, of each that is looked at."""
        looked = random.Random(0).sample(self.sent, min(self.options.check, len(self.sent)))
        different = 0
        with load(model, context=CONTEXT) as engine, serving(engine) as address:
            for each in looked:
                with engine.steps.lock:
                    engine.cache.clear()
                alone = ask(address, each.api, each.body)
                assert not alone.cached
                different += alone.said != each.reply.said
        print(f"  {len(looked)} completions compared with the same requests alone: {different} differ", flush=True)
        return different


class Agent:
    """One conversation, whose tool results and questions follow from a seed."""

    def __init__(self, day: Day, api: str, number: int) -> None:
        self._day, self._api, self._random = day, api, random.Random(f"{day.options.seed} {number}")
        self._messages: list[dict[str, Any]] = [{"role": "user", "content": self._words(20)}]

    def _words(self, count: int) -> str:
        return " ".join(self._random.choices(WORDS, k=count))

    def work(self, first: int, last: int) -> None:
        """These turns: a reply, and the result of what it calls."""
        day, turns = self._day, self._day.options.turns
        for turn in range(first, last):
            date = f"Today is day {1 + (3 * turn >= 2 * turns)}."
            system = {"role": "system", "content": f"{SYSTEM['content']} {date}"}
            if turn % TITLE_EVERY == 0:
                asked = [{"role": "system", "content": "Write a title."}, {"role": "user", "content": self._words(30)}]
                day.ask("chat", asked, [], must_call=False, short=True)
            ends = turn % ASKS_EVERY == ASKS_EVERY - 1
            reply = day.ask(self._api, [system, *self._messages], TOOLS, must_call=not ends)
            if not day.scenario.kept:
                reply = {key: value for key, value in reply.items() if key != "reasoning_content"}
            self._messages.append(reply)
            for call in reply.get("tool_calls", ()):
                result = self._words(self._random.randint(*day.options.words))
                self._messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            if not reply.get("tool_calls"):
                self._messages.append({"role": "user", "content": self._words(20)})


def _post(address: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.post(address, json=body, timeout=600)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def _played(scenario: Scenario, model: Path, options: argparse.Namespace) -> Day:
    """A scenario, on a server of its own."""
    day, turns = Day(scenario, options, options.server or ""), options.turns
    agents = [Agent(day, api, number) for number, api in enumerate(scenario.agents)]
    if options.server is not None:
        day.work(0, turns, agents)
        return day
    with tempfile.TemporaryDirectory() as folder:
        given = ["--ctx-size", str(CONTEXT)]
        if scenario.memory is not None:
            longest = 1500 + turns * (sum(options.words) // 2 + 60)
            tokens = int(scenario.memory * len(agents) * longest)
            given = ["--ctx-size", str(longest), "--kv-memory", str(tokens * TOKEN_BYTES)]
        if scenario.restart:
            given += ["--cache-dir", folder]
        for first, last in [(0, turns // 2), (turns // 2, turns)] if scenario.restart else [(0, turns)]:
            with served_by_command(model, *given) as day.address:
                day.work(first, last, agents)
    return day


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="A model file (default: the tiny model with a template of Qwen's)")
    parser.add_argument("--server", metavar="URL", help="A server that runs, in place of own ones")
    parser.add_argument("--peer", metavar="URL", help="A llama-server to send the same requests to")
    parser.add_argument("--model-name", default="tiny", help="What requests call the model")
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--words", type=int, nargs=2, default=[100, 300], metavar=("N", "M"), help="Of a tool's result")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=[*SCENARIOS])
    parser.add_argument("--check", type=int, default=8, help="Completions of each scenario to compare with alone")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    well = True
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ["XDG_CACHE_HOME"] = str(folder)
        model = options.model or write_agent_model(folder / "tiny.gguf", CONTEXT)
        for scenario in map(SCENARIOS.__getitem__, options.scenarios):
            if options.server is not None and (scenario.restart or scenario.memory is not None):
                continue
            day = _played(scenario, model, options)
            well &= day.report()
            if options.peer is not None:
                day.beside(options.peer)
            if options.server is None and options.check:
                well &= not day.differing(model)
    return int(not well)


if __name__ == "__main__":
    sys.exit(main())
