"""Requests that move between two engines of the tiny model: `python tools/moves.py --streams 1000 --every 50`.

Prints how many texts differ from those of an engine that keeps its requests, and how long moves hold them up. Ends with
a status of 1 when one differs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.moved import PROMPTS, asked, moved_between
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime import load
from trigraph.runtime.execution.prefill_speed import PrefillSpeed


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--device", default="cpu", help="of the second engine")
    options = parser.parse_args()
    engines = load(TINY_GGUF, threads=1, context=512), load(TINY_GGUF, threads=1, context=512, device=options.device)
    kinds = [*asked(options.tokens).items()]
    differing = 0
    pauses: dict[bool, list[float]] = {False: [], True: []}
    for number in range(options.streams):
        name, option = kinds[number % len(kinds)]
        option = replace(option, sampling=replace(option.sampling, seed=number))
        prompt = f"{PROMPTS[number % len(PROMPTS)]} {number}"
        whole = engines[0].generate(prompt, option)
        text = whole.run()
        engines[0]._driver.call(engines[0].cache.clear)
        slow = number // len(kinds) % 2 == 0  # with state; else from tokens
        with patch.object(PrefillSpeed, "seconds", return_value=1e9 if slow else 0.0):
            found = moved_between(engines, prompt, option, options.every)
        pauses[slow] += found.pauses
        if (found.request.text, found.request.ids) != (text, whole.ids):
            differing += 1
            print(f"stream {number} ({name}) differs")
    print(f"{options.streams} streams, {sum(map(len, pauses.values()))} moves, {differing} differ")
    for slow, found_pauses in pauses.items():
        if len(found_pauses) > 1:
            median, p95 = statistics.median(found_pauses), statistics.quantiles(found_pauses, n=20)[-1]
            print(f"{'with state' if slow else 'from tokens'}: pause {median * 1e3:.1f} ms, p95 {p95 * 1e3:.1f} ms")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
