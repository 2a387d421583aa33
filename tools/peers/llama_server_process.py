"""llama.cpp's server in a process of its own: reads a line of JSON for each load, and answers with one.

It imports nothing but the standard library and `xllamacpp`, so that its memory is llama.cpp's.
"""

import json
import os
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

_BURST = 0.001  # seconds within which tokens that were verified together come


def _server(settings: dict[str, Any]) -> Any:
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = settings["path"]
    parameters.n_gpu_layers = 0
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = settings["threads"]
    parameters.n_parallel = settings["slots"]
    parameters.n_ctx = settings["slots"] * settings["context"]
    parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    parameters.cont_batching = True
    parameters.cache_prompt = settings["cache"]
    if not settings["cache"]:
        parameters.cache_ram_mib = parameters.n_ctx_checkpoints = 0
    if settings["mtp"]:
        parameters.load_mtp = True
        parameters.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_MTP]
    parameters.verbosity = -1
    return xllamacpp.Server(parameters)


def _served(server: Any, prompt: list[int], tokens: int, mtp: bool) -> dict[str, Any]:
    """One request; times are of this process's clock."""
    seen: list[tuple[float, int]] = []
    last: dict[str, Any] = {}

    def take(chunk: dict[str, Any]) -> None:
        now = time.perf_counter()
        last.update(chunk)
        if "timings" in chunk:
            seen.append((now, chunk["timings"]["predicted_n"]))

    submitted = time.perf_counter()
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    server.handle_completions({**body, "stream": True, "timings_per_token": True}, take)
    if "error" in last:
        raise RuntimeError(last["error"]["message"])
    timings = last["timings"]
    return {
        "submitted": submitted,
        "arrivals": arrivals(seen, _BURST if mtp else 0),
        "tokens": last["usage"]["completion_tokens"],
        "reused": timings["cache_n"],
        "drafted": timings.get("draft_n", 0),
        "accepted": timings.get("draft_n_accepted", 0),
    }


def arrivals(seen: Iterable[tuple[float, int]], burst: float) -> list[float]:
    """When tokens came, from pairs of a time and the number of tokens so far.

    The server holds tokens back that are parts of a character: their times are spread evenly over the wait. Tokens
    within `burst` seconds of the one before came together.
    """
    found: list[float] = []
    count = 0
    for now, tokens in seen:
        held = tokens - count
        if held > 0 and not (found and now - found[-1] <= burst):
            before = found[-1] if found else now
            found += [before + (now - before) * (i + 1) / held for i in range(held)]
        count = tokens
    return found


def _peak_memory() -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return None


def main() -> None:
    """Serves until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed
    settings = json.loads(sys.stdin.readline())
    server = _server(settings)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        load = json.loads(line)
        try:
            with ThreadPoolExecutor(load["concurrency"]) as clients:
                serve = partial(_served, server, tokens=load["tokens"], mtp=settings["mtp"])
                served = list(clients.map(serve, load["prompts"]))
            answer: dict[str, Any] = {"served": served, "peak_memory": _peak_memory()}
        except RuntimeError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
