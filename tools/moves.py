"""Requests that move between two engines of the tiny model: `python tools/moves.py --streams 1000 --devices cpu,cuda`.

Prints how many texts, or logits' bits, differ from those of a third engine that keeps its requests, and how long moves
hold them up. Ends with a status of 1 when one differs. To see many in pieces, give other numbers and the same file:
`--streams 50 --first 50 --results moves.jsonl`. On the fake device (with the environment that
tests/cuda/test_fake_cuda.py gives it) a stream takes about 2 s.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.requests.moved import PROMPTS, Moved, asked, moved_between
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime import Engine, Options, Request, load
from trigraph.runtime.engine.config import EngineConfig
from trigraph.runtime.execution.prefill_speed import PrefillSpeed

BEGINNING = "The LORD is my shepherd; I shall not want. He maketh me to lie down in green pastures. "


@dataclass(frozen=True)
class Stream:
    """One request: `kind` of sampling, and the engine that begins it."""

    number: int
    kind: str
    prompt: str
    options: Options
    begins: int

    @classmethod
    def of(cls, number: int, tokens: int) -> Stream:
        """Prompts share beginnings, and three streams of five record the bits of their logits."""
        kinds = [*asked(tokens).items()]
        kind, options = kinds[number % len(kinds)]
        options = replace(options, sampling=replace(options.chosen_by, seed=number), receipt=number % 5 > 1)
        prompt = f"{BEGINNING * (number // 12 % 3)}{PROMPTS[number % len(PROMPTS)]} {number}"
        return cls(number, kind, prompt, options, number // 8 % 2)


@dataclass
class Result:
    """What became of a stream."""

    number: int
    tokens: int
    rows: int
    """Tokens whose logits were compared, too."""
    differs: bool
    moves: int
    pauses: dict[str, list[float]]
    """Milliseconds, by how the stream moved."""


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="Number of the first one")
    parser.add_argument("--every", type=int, default=50, help="Tokens between moves")
    parser.add_argument("--tokens", type=int, default=150, help="Most tokens of a stream")
    parser.add_argument("--at-once", type=int, default=4, help="Streams at a time")
    parser.add_argument("--devices", default="cpu,cpu", help="Of the engines, as cpu,cuda or cuda:0+cuda:1,cpu")
    parser.add_argument("--results", type=Path, help="A file with those of earlier runs, to which these are added")
    options = parser.parse_args()
    streams = [Stream.of(number, options.tokens) for number in range(options.first, options.first + options.streams)]
    with load(TINY_GGUF, threads=1, context=512) as alone:
        kept = [alone.submit(stream.prompt, stream.options) for stream in streams]
        for request in kept:
            request.result()
    results = moved(streams, kept, options)
    if options.results:
        with options.results.open("a") as file:
            file.writelines(json.dumps(asdict(result)) + "\n" for result in results)
        results = [Result(**json.loads(line)) for line in options.results.read_text().splitlines()]
    return show(results)


def moved(streams: list[Stream], kept: list[Request], options: argparse.Namespace) -> list[Result]:
    """Moves streams; `kept`: the same ones, which an engine has kept."""
    devices = options.devices.split(",")
    config = EngineConfig(threads=1, context=512, sequences=options.at_once)
    pair = [load(TINY_GGUF, replace(config, device=device.replace("+", ","))) for device in devices]
    results = []
    with ThreadPoolExecutor(options.at_once) as pool:
        for begun in range(0, len(streams), options.at_once):
            group = slice(begun, begun + options.at_once)
            way = "from tokens" if begun // options.at_once % 2 else "with state"
            with patch.object(PrefillSpeed, "seconds", return_value=1e9 if way == "with state" else 0.0):
                found = [*pool.map(partial(_moved, pair, options.every), streams[group])]
            for stream, whole, each in zip(streams[group], kept[group], found, strict=True):
                request, pauses = each.request, dict[str, list[float]]()
                for target, pause in enumerate(each.pauses, stream.begins + 1):
                    pauses.setdefault(f"{way}, to {devices[target % 2]}", []).append(1e3 * pause)
                differs = (request.text, request.ids, each.rows) != (whole.text, whole.ids, whole.rows)
                results.append(Result(stream.number, len(whole.ids), len(whole.rows), differs, each.moves, pauses))
                if differs:
                    print(f"stream {stream.number} ({stream.kind}) differs", flush=True)
    return results


def _moved(pair: list[Engine], every: int, stream: Stream) -> Moved:
    """What becomes of a stream."""
    engines = pair[stream.begins], pair[1 - stream.begins]
    return moved_between(engines, stream.prompt, stream.options, every)


def show(results: list[Result]) -> int:
    """Prints sums; whether a stream differs."""
    tokens, rows, moves, differ = (
        sum(values)
        for values in zip(*((each.tokens, each.rows, each.moves, each.differs) for each in results), strict=True)
    )
    print(f"{len(results)} streams of {tokens} tokens, the logits of {rows} compared too; {differ} differ")
    print(f"{moves} moves, at least {min(each.moves for each in results)} of each stream")
    for way in sorted({way for each in results for way in each.pauses}):
        pauses = sorted(pause for each in results for pause in each.pauses.get(way, ()))
        late = pauses[int(0.95 * len(pauses))]
        print(
            f"{way}: {len(pauses)} moves, pause {statistics.median(pauses):.1f} ms, "
            f"p95 {late:.1f} ms, at most {pauses[-1]:.1f} ms"
        )
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
