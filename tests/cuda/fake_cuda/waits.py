"""What the host does while the device computes: of the rounds of an engine. Nothing is computed."""

import pytest

from support.fake_cuda import FakeDevice, count
from support.packages import Packages
from trigraph.runtime import Options, Sampling, load

ROUNDS = 40


@pytest.mark.parametrize(("requests", "drafts"), [(1, 0), (1, 3), (3, 0), (3, 2)])
def test_a_round_is_enqueued_ahead_of_all_that_can_wait(
    packages: Packages, gpu: FakeDevice, requests: int, drafts: int
) -> None:
    """Readers are woken, and draws are sent, when the device has the next step: one wait a round, at its end."""
    engine = load(packages("tiny-moe", "Q4_K_M"), device="cuda", context=256, sequences=requests)
    seen: list[list[str]] = []
    options = Options(Sampling(temperature=0), max_tokens=4 * ROUNDS, ignore_eos=True, draft_tokens=drafts)
    with engine.steps.lock:  # so that one round takes in all
        texts = [engine.submit([3, 1, 4, 1, 5 + i], options) for i in range(requests)]
        wake = texts[0].wake

        def noted() -> None:
            seen.append(gpu.events())
            wake()

        texts[0].wake = noted  # type: ignore[method-assign]
    for text in texts:
        text.result(60)
    assert len(seen) > ROUNDS / 2
    for events in seen[-12:-2]:  # between two wakes: the end of a round, and the next one but for its end
        assert count(events, "wait") == 1 and not [event for event in events if event.startswith("error")]
        ended = next(number for number, event in enumerate(events) if event.startswith("wait"))
        begun = events[ended + 1 :]
        assert count(begun, "replay") == 1 + drafts  # and as many draws, in launches of their own
        assert count(begun, "launch") == count(begun, "launch own draw") > 0
        assert begun[0].startswith("copy pinned device") and begun[1].startswith("replay"), begun
