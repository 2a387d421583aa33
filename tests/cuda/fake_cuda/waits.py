"""What the host does while the device computes: of the rounds of an engine. Nothing is computed."""

import pytest

from support.devices.fake_cuda import FakeDevice, count
from support.models.packages import Packages
from trigraph.runtime import Options, Sampling, load

ROUNDS = 40


@pytest.mark.parametrize(
    ("requests", "drafts", "drafter"),
    [(1, 0, "mtp"), (1, 3, "mtp"), (3, 0, "mtp"), (3, 2, "mtp"), (1, 7, "block"), (3, 2, "block")],
)
def test_a_round_is_enqueued_ahead_of_all_that_can_wait(
    packages: Packages, gpu: FakeDevice, requests: int, drafts: int, drafter: str
) -> None:
    """Readers are woken, and draws are sent, when the device has the next step: one wait a round, at its end."""
    options = {"drafter": "dflash2"} if drafter == "block" else {}
    engine = load(packages("tiny-moe", "Q4_K_M", **options), device="cuda", context=256, sequences=requests)
    runs = 1 if drafter == "block" else drafts
    seen: list[list[str]] = []
    sampling = Sampling(temperature=0)
    asked = Options(sampling, max_tokens=4 * ROUNDS, ignore_eos=True, draft_tokens=drafts, drafter=drafter)
    with engine.steps.lock:  # so that one round takes in all
        texts = [engine.submit([3, 1, 4, 1, 5 + i], asked) for i in range(requests)]
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
        assert count(begun, "replay") == 1 + runs  # and as many draws, in launches of their own
        assert count(begun, "launch") == count(begun, "launch own draw") + count(begun, "launch own walk") > 0
        assert begun[0].startswith("copy pinned device") and begun[1].startswith("replay"), begun
