"""One text, one answer, with images in it: cuts, batches, drafts, caches and instruction sets change nothing."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from support.marks import slow_after
from support.models.seeing import SeeingPackages, Seen, picture, prompt_of
from support.operators.run import LIBRARY
from support.requests.promise import draft_chains, row_bits, sequence_bits
from trigraph.runtime import Engine, Options, Sampling, load
from trigraph.runtime.images.prompt import ImagePrompt
from trigraph.runtime.requests.handle import Handle

MODELS = [
    ("tiny-dense", "F32", "F32", "float32", "f16"),
    ("tiny-moe", "Q4_K_M", "F16", "int8", "f16"),
    ("tiny-dense", "mixed", "Q8_0", "int8", "q8_0"),
    *([("tiny-moe", "Q4_K_M", "F16", "int8", "f16", "dflash2")] if LIBRARY == "cpu" else []),  # a GPU runs none yet
]
PROMPT = prompt_of(3, (2, 3), 2, (3, 1), (1, 4), 5)
GREEDY = Options(Sampling(temperature=0), 24, ignore_eos=True, logprobs=2)


def folder_of(packages: SeeingPackages, model: tuple[str, ...]) -> Path:
    geometry, quant, tower, activations, kv_type, *drafter = model
    options = dict(activations=activations, kv_type=kv_type, **({"drafter": drafter[0]} if drafter else {}))
    return packages(geometry, quant, tower, **options)


@functools.cache
def opened(packages: SeeingPackages, model: tuple[str, ...], threads: int = 1, chunk: int = 512) -> Engine:
    folder = folder_of(packages, model)
    return load(folder, threads=threads, chunk=chunk, context=128, sequences=5, device=LIBRARY)


@functools.cache
def bits_of(engine: Engine, prompt: ImagePrompt, stop: int) -> dict[str, object]:
    """What a sequence holds that was computed up to there in one piece, and the row that it gave."""
    seen = Seen(engine, prompt)
    sequence = seen.start(engine)
    rows = row_bits(seen.prefill(engine, sequence, stop))
    found = {"prompt": rows} | sequence_bits(engine, sequence)
    engine.steps.release(sequence)
    return found


@pytest.mark.parametrize("model", slow_after(1, MODELS), ids="-".join)
def test_a_prompt_cut_anywhere(seeing: SeeingPackages, model: tuple[str, ...]) -> None:
    """Once at every place, inside images too; in pieces of every size; with other threads and chunks."""
    plain = opened(seeing, model)
    expected = bits_of(plain, PROMPT, len(PROMPT.ids))
    for engine in (plain, opened(seeing, model, threads=2, chunk=7)):
        seen = Seen(engine, PROMPT)
        for cut in range(1, len(seen) + 1):
            sequence = seen.start(engine)
            rows = row_bits(seen.prefill(engine, sequence, cut))
            assert rows == bits_of(plain, PROMPT, cut)["prompt"]
            if cut < len(seen):
                rows = row_bits(seen.prefill(engine, sequence, len(seen)))
            assert {"prompt": rows} | sequence_bits(engine, sequence) == expected
            engine.steps.release(sequence)
        for size in range(1, 9):
            sequence = seen.start(engine)
            while sequence.length < len(seen):
                rows = row_bits(seen.prefill(engine, sequence, min(len(seen), sequence.length + size)))
            assert {"prompt": rows} | sequence_bits(engine, sequence) == expected
            engine.steps.release(sequence)


@pytest.mark.parametrize("model", slow_after(1, MODELS), ids="-".join)
def test_batches(seeing: SeeingPackages, model: tuple[str, ...]) -> None:
    """Prompts with other images and with none beside each other, in one prefill and in verifies and drafts."""
    engine = opened(seeing, model)
    prompts = [PROMPT, prompt_of(9, seed=1), prompt_of((1, 1), 1, seed=2), prompt_of(4, (2, 2), 3, seed=3)]
    seen = [Seen(engine, prompt) for prompt in prompts]
    for count in range(2, len(prompts) + 1):
        sequences = [each.start(engine) for each in seen[:count]]
        pieces, rows = zip(*[each.piece(0, len(each)) for each in seen[:count]], strict=True)
        found = row_bits(engine.steps.prefill(sequences, pieces, rows))
        assert found == [bits_of(engine, prompt, len(prompt.ids))["prompt"][0] for prompt in prompts[:count]]  # type: ignore[index]
        # Drafts and rejected tokens of all of them, which leave nothing behind.
        draft_chains(engine, sequences, [5] * count)
        engine.steps.verify(sequences, [[5, 6, 7]] * count)
        for sequence in sequences:
            engine.steps.keep(sequence, 0)
        for sequence, prompt in zip(sequences, prompts, strict=False):
            expected = dict(bits_of(engine, prompt, len(prompt.ids)))
            del expected["prompt"]
            assert sequence_bits(engine, sequence) == expected
            engine.steps.release(sequence)


def test_drafts_and_rejects(seeing: SeeingPackages) -> None:
    """Text behind images, decoded with drafts that are kept in part, has the bits of a prefill."""
    engine = opened(seeing, MODELS[0])
    whole = prompt_of(3, (2, 3), 2, (3, 1), 20)
    seen, plain = Seen(engine, whole), engine.steps
    sequence = seen.start(engine)
    seen.prefill(engine, sequence, 14)
    for kept in (1, 3, 2, 4, 1):
        text = seen.tokens[sequence.length : sequence.length + 4]
        drafts = draft_chains(engine, [sequence], text[:1])
        other = seen.start(engine)
        seen.prefill(engine, other, sequence.length)
        assert draft_chains(engine, [other], text[:1]) == drafts
        plain.release(other)
        rows = row_bits(plain.verify([sequence], [text]))
        assert rows == [bits_of(engine, whole, sequence.length + i + 1)["prompt"][0] for i in range(4)]  # type: ignore[index]
        plain.keep(sequence, kept)
    expected = dict(bits_of(engine, whole, sequence.length))
    del expected["prompt"]
    assert sequence_bits(engine, sequence) == expected
    plain.release(sequence)


def result_of(request: Handle) -> tuple[list[int], list[object]]:
    request.result()
    return request.ids, [*request.logprobs]


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids="-".join)
def test_requests(seeing: SeeingPackages, model: tuple[str, ...], tmp_path: Path) -> None:
    """Alone, together, with and without drafts, from the cache, preempted, and after another program's checkpoints."""
    folder = folder_of(seeing, model)
    shared = picture((3, 4), 9)
    prompts = [
        prompt_of(20, shared, 4, seed=1), prompt_of(20, shared, 9, (2, 2), 1, seed=1), prompt_of(30, seed=4),
        prompt_of(20, picture((3, 4), 8), 4, seed=1), prompt_of((4, 4), 1, seed=5),
    ]  # fmt: skip
    with load(folder, threads=1, context=128, sequences=1, speculation=False, device=LIBRARY) as engine:
        expected = [result_of(engine.submit(prompt, GREEDY)) for prompt in prompts]
    assert len({tuple(ids) for ids, _ in expected}) == len(prompts)
    for settings in (
        {"threads": 2, "chunk": 5, "sequences": 4},
        {"sequences": 4, "kv_memory": 1, "checkpoint_memory": 1},
        {"sequences": 1, "image_memory": 0},
    ):
        if "kv_memory" in settings:
            with load(folder, context=128, device=LIBRARY) as engine:  # a page more than one context
                settings["kv_memory"] = 3 * engine.steps.state.page_bytes
                settings["checkpoint_memory"] = 8 * engine.steps.state.slot_bytes
        with load(folder, context=128, device=LIBRARY, **settings) as engine:  # type: ignore[arg-type]
            for _ in range(2):  # the second time from the cache
                requests = [engine.submit(prompt, GREEDY) for prompt in prompts]
                assert [result_of(request) for request in requests] == expected


def test_the_tower_runs_once_an_image(seeing: SeeingPackages) -> None:
    """Not again for the same image in another prompt, and not at all where the prefix cache has the prompt."""
    folder = seeing("tiny-dense", "F32")
    shown = picture((3, 4))
    with load(folder, context=256, device=LIBRARY) as engine:
        vision = engine.model.vision
        assert vision is not None and engine.supports_images
        for parts in ((20, shown, 4), (30, shown, 1), (5, shown, 2, shown, 3)):
            engine.submit(prompt_of(*parts), GREEDY).result()
        assert (vision.embeddings.computed, vision.embeddings.found) == (1, 3)
        request = engine.submit(prompt_of(20, shown, 4), GREEDY)
        request.result()
        assert request.stats.reused_tokens == 36 and vision.embeddings.found == 3


def test_text_is_what_it_is_without_a_tower(seeing: SeeingPackages, synthetic: object, packages: object) -> None:
    """The same bits, and the same identity: what is saved of texts goes on with and without images."""
    folder = packages("tiny-moe", "Q4_K_M")  # type: ignore[operator]
    prompt = prompt_of(40)
    with load(folder, device=LIBRARY) as plain, load(seeing("tiny-moe", "Q4_K_M"), device=LIBRARY) as seen:
        assert plain.identity == seen.identity and not plain.supports_images
        assert result_of(plain.submit(prompt, GREEDY)) == result_of(seen.submit(prompt, GREEDY))


@pytest.mark.slow
@pytest.mark.skipif(LIBRARY == "cuda", reason="of a processor's instruction sets")
def test_instruction_sets(seeing: SeeingPackages, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Image rows too have the bits of the portable kernels, and so has all that follows from them."""
    folder = seeing("tiny-moe", "Q4_K_M", "F16")

    def answer() -> tuple[bytes, object]:
        with load(folder, context=128, repack="off") as engine:
            assert engine.model.vision is not None
            (image,) = engine.model.vision.placed(prompt)
            rows = engine.model.vision.rows(image, prompt.pixels[0])
            return rows.tobytes(), result_of(engine.submit(prompt, GREEDY))

    prompt = prompt_of(3, (5, 7), 4)
    found = answer()
    monkeypatch.setenv("TRIGRAPH_ISA", "portable")
    assert found == answer()
