"""Prompts with images for the example hosts."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from support.models.seeing import prompt_of
from trigraph.runtime import Options, Sampling, load


def image_arguments(package: Path, folder: Path, drafts: int, tokens: int) -> tuple[list[str], list[list[int]]]:
    """Arguments with prompts that show images, one without; and our own ids after each."""
    prompts = [prompt_of(4, (2, 3), 3, seed=1), prompt_of((1, 4), 2, (3, 1), 5, seed=2), prompt_of(7, seed=3)]
    files: list[str] = []
    lists, found = [], []
    with load(package, threads=1, context=512) as engine:
        for prompt in prompts:
            words = [*map(str, prompt.ids)]
            for span in reversed(prompt.images):
                words[span.start : span.end] = ["IMAGE"]
            lists.append(",".join(words))
            for shown in prompt.pixels:
                files += ["--image", str(folder / f"{len(files)}.ppm")]
                Image.fromarray(shown.pixels).save(files[-1])
            options = Options(Sampling(temperature=0), max_tokens=tokens, ignore_eos=True, speculate=False)
            request = engine.generate(prompt, options)
            request.run()
            found.append(request.ids)
    assert len({tuple(ids) for ids in found}) == len(found)
    return [str(package), "--tokens", str(tokens), "--drafts", str(drafts), *files, *lists], found
