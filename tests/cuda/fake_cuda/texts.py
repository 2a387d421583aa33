"""Whole texts on the fake device, in the CPU's bits."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from support.devices.fake_cuda import FakeDevice, copied, count
from support.models.packages import Packages
from support.models.seeing import SeeingPackages, prompt_of
from support.requests.promise import draft_chains
from trigraph.runtime import Engine, Options, Sampling, load

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


GREEDY, SAMPLED = Sampling(temperature=0), Sampling(seed=7)
PENALIZED = Sampling(seed=7, repeat_penalty=1.1)
"""Of which the device draws nothing."""


def texts(engine: Engine) -> list[list[int]]:
    """Greedy and sampled, plain and with drafts, alone; then three together with drafts of other lengths."""
    found = []
    for sampling, drafts in ((GREEDY, 0), (GREEDY, 3), (SAMPLED, 3)):
        request = engine.generate(PROMPT, Options(sampling, max_tokens=6, ignore_eos=True, draft_tokens=drafts))
        request.run()
        found.append(request.ids)
    together = [
        engine.submit(PROMPT[i:], Options(sampling, max_tokens=6, ignore_eos=True, draft_tokens=3 - i))
        for i, sampling in enumerate((GREEDY, SAMPLED, PENALIZED))
    ]
    return found + [request.ids for request in together if request.result() is not None]


@pytest.fixture(params=[("tiny-moe", "f16"), ("tiny-dense", "q8_0")], ids="-".join)
def package(packages: Packages, request: pytest.FixtureRequest) -> Path:
    """Those whose text is computed by our kernels alone; tiny-next has nodes of ONNX Runtime's."""
    geometry, kv_type = request.param
    return packages(geometry, "Q4_K_M", kv_type=kv_type)


def test_texts_are_the_cpus(package: Path) -> None:
    assert texts(load(package, device="cuda", context=64)) == texts(load(package, device="cpu", context=64))


@pytest.mark.parametrize("kind", ["dflash", "dflash2", "dspark"])
def test_texts_by_blocks_are_the_cpus(packages: Packages, kind: str) -> None:
    """With blocks that are captured, and as many drafts right: the device's walk is the host's."""
    package, found = packages("tiny-moe", "Q4_K_M", drafter=kind), []
    for device in ("cuda", "cpu"):
        engine = load(package, device=device, context=64, sequences=3)
        requests = [
            engine.submit(PROMPT[i:], Options(sampling, 12, ignore_eos=True, draft_tokens=5 - i, drafter="block"))
            for i, sampling in enumerate((GREEDY, SAMPLED, PENALIZED))
        ]
        alone = engine.generate(PROMPT, Options(GREEDY, 12, ignore_eos=True, draft_tokens=7, drafter="block"))
        for request in (*requests, alone):
            request.result() if request is not alone else alone.run()
        found.append([(one.ids, one.stats.accepted) for one in (*requests, alone)])
    assert found[0] == found[1]


def test_images_are_the_cpus(seeing: SeeingPackages) -> None:
    """Texts of a package with a tower, and an image's rows; a prefill with an image has a node of ONNX Runtime's."""
    folder, prompt = seeing("tiny-moe", "Q4_K_M", "F16"), prompt_of(2, (3, 2), 2)
    found = []
    for device in ("cuda", "cpu"):
        engine = load(folder, device=device, context=64)
        vision = engine.model.vision
        assert vision is not None
        rows = [vision.rows(image, prompt.pixels[0]).tobytes() for image in vision.placed(prompt)]
        found.append((texts(engine), rows))
    assert found[0] == found[1]


@pytest.mark.parametrize(("sampling", "drafts"), [(GREEDY, 0), (GREEDY, 2), (SAMPLED, 2), (PENALIZED, 2)])
def test_what_a_round_reads(packages: Packages, gpu: FakeDevice, sampling: Sampling, drafts: int) -> None:
    """Of a longer text, no more logits than of a shorter one; penalties need a row for each draft and token."""
    engine = load(packages("tiny-moe", "Q4_K_M"), device="cuda", context=64)
    reads, waits, rounds = [], [], []
    for tokens in (9, 3, 9):  # the first one allocates and captures
        engine.cache.clear()
        gpu.events()
        request = engine.generate(PROMPT, Options(sampling, max_tokens=tokens, ignore_eos=True, draft_tokens=drafts))
        request.run()
        events = gpu.events()
        reads.append(copied(events, "device", "pageable"))
        waits.append(count(events, "wait"))
        rounds.append(request.stats.rounds)
    if sampling == PENALIZED:
        assert reads[2] > reads[1]
    else:
        assert reads[2] == reads[1]
        assert waits[2] - waits[1] == rounds[2] - rounds[1]


def rows(engine: Engine, lengths: Sequence[int], accepted: int) -> list[bytes]:
    """Of verifies of two texts, of so many tokens together, after each of which `accepted` tokens are kept."""
    sequences = [engine.steps.new_sequence() for _ in range(2)]
    found = [part.copy().tobytes() for part in engine.steps.prefill(sequences, [PROMPT, PROMPT[:3]])]
    for length in lengths:
        few = list(range(9, 9 + length // 2))
        companions = sequences if few else sequences[:1]
        tokens = [list(range(5, 5 + length - len(few))), few][: len(companions)]
        result = engine.steps.verify(companions, tokens)
        found += [part.copy().tobytes() for part in result]
        for sequence, own in zip(companions, tokens, strict=True):
            engine.steps.keep(sequence, min(accepted, len(own)))
    return found


@pytest.mark.parametrize(("accepted", "lengths"), [(0, [3, 8, 3]), (2, [*range(1, 17), 3]), (5, [8, 1, 7, 2])])
def test_verifies_have_the_bits_of_the_cpu(packages: Packages, accepted: int, lengths: list[int]) -> None:
    """Of each number of rows up to the most that are captured, every one seen first with tokens to commit.

    ONNX Runtime runs the first step of a shape three times when it captures it, and the state must move once.
    The second time, fewer tokens may be pending than are to commit.
    """
    package = packages("tiny-moe", "Q4_K_M")
    found, expected = (rows(load(package, device=d, context=256), lengths, accepted) for d in ("cuda", "cpu"))
    assert found == expected


def test_drafts_have_the_bits_of_the_cpu(package: Path) -> None:
    """Chains of drafts after one and two tokens whose entries are rebuilt, then again."""

    def chains(device: str) -> list[object]:
        engine = load(package, device=device, context=128)
        sequence = engine.steps.new_sequence()
        engine.steps.prefill([sequence], [PROMPT])
        found: list[object] = []
        for kept in (1, 2, 1):
            engine.steps.verify([sequence], [[7, 8, 9, 10]])
            engine.steps.keep(sequence, kept)
            found += draft_chains(engine, [sequence], [11])
        return found

    assert chains("cuda") == chains("cpu")
