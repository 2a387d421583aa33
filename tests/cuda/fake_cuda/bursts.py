"""Bursts of requests with idle times between them. Nothing is computed: only what is captured and replayed counts."""

from support.devices.fake_cuda import FakeDevice, count
from support.models.packages import Packages
from trigraph.runtime import Options, Sampling, load

KINDS = [(1, 3, 0), (3, 5, 0), (2, 8, 3), (1, 12, 2), (3, 4, 1)]
"""Requests, their tokens, and drafts of a round."""
BURSTS = 200


def test_captures_survive_idle_times(packages: Packages, gpu: FakeDevice) -> None:
    """A burst like one before replays what that captured: one thread runs them all."""
    engine = load(packages("tiny-moe", "Q4_K_M"), device="cuda", context=256)
    captures, launches = [], []
    for number in range(BURSTS):
        requests, tokens, drafts = KINDS[number % len(KINDS)]
        engine.cache.clear()
        gpu.events()
        with engine.steps.lock:  # so that one round takes in all
            burst = [
                engine.submit(
                    [3, 1, 4, 1, 5, 9][: 4 + i],
                    Options(Sampling(temperature=0), max_tokens=tokens, ignore_eos=True, draft_tokens=drafts),
                )
                for i in range(requests)
            ]
        for request in burst:
            request.result()
        events = gpu.events()
        captures.append(count(events, "capture ends"))
        launches.append(count(events, "launch"))
    half = BURSTS // 2
    assert 0 < sum(captures[:half]) < 40 and not any(captures[half:])
    for kind in range(len(KINDS)):  # what is left are prefills and draws
        assert len(set(launches[half + kind :: len(KINDS)])) == 1
        assert launches[half + kind] < launches[kind]
