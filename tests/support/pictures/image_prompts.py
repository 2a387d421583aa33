"""Prompts with images as transformers makes them."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest

from trigraph.runtime.images.prompt import without_images
from trigraph.runtime.text.tokenizer import Tokenizer


def hf_processor(tokenizer: Tokenizer, area: tuple[int, int]) -> Any:
    """Its processor of these models, with the same vocabulary; images have an area between these."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")
    from tokenizers import Tokenizer as HFTokenizer
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    text = transformers.PreTrainedTokenizerFast(
        tokenizer_object=HFTokenizer.from_str(tokenizer.as_json()), eos_token="<|im_end|>"
    )
    size = {"shortest_edge": area[0], "longest_edge": area[1]}
    images = Qwen2VLImageProcessorPil(patch_size=16, image_mean=[0.5] * 3, image_std=[0.5] * 3, size=size)

    # Its video processor needs torchvision, so this is the part that images need.
    pad = text.convert_tokens_to_ids("<|image_pad|>")
    found = SimpleNamespace(image_processor=images, tokenizer=text, image_token="<|image_pad|>", image_token_id=pad)
    replace: Any = transformers.Qwen3VLProcessor.replace_image_token
    found.replace_image_token = lambda inputs, index: replace(found, inputs, index)
    return found


def hf_prompt(processor: Any, source: str, messages: list[dict[str, Any]], variables: dict[str, Any]) -> Any:
    """Tokens and positions of messages whose images are Pillow's. [T], [3, T]"""
    import torch
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5Model
    from transformers.utils.chat_template_utils import render_jinja_template

    # A name that a user types is text here; transformers would make a token of it.
    content = json.loads(json.dumps(without_images(messages)[0]).replace("<|image_pad|>", "\ufdd0"))
    text = render_jinja_template([content], chat_template=source, add_generation_prompt=True, **variables)[0][0]
    images = without_images(messages)[1]
    grids = None
    if images:
        inputs = processor.image_processor(images, return_tensors="pt")
        grids = inputs["image_grid_thw"]
        for index in range(len(images)):
            text = text.replace("<|image_pad|>", processor.replace_image_token(inputs, index).replace("pad", "PAD"), 1)
    ids: list[int] = []
    for number, part in enumerate(re.split(r"(<\|[a-z_]+\|>)", text.replace("PAD", "pad"))):
        control = number % 2 == 1
        part_ids = processor.tokenizer(
            part.replace("\ufdd0", "<|image_pad|>"), split_special_tokens=not control, add_special_tokens=False
        )
        ids += part_ids["input_ids"]
    kinds = torch.tensor([[int(token == processor.image_token_id) for token in ids]])
    config = SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2))
    methods: Any = Qwen3_5Model
    model = SimpleNamespace(config=config)
    model.get_vision_position_ids = lambda *given, **how: methods.get_vision_position_ids(model, *given, **how)
    positions, _ = methods.get_rope_index(model, torch.tensor([ids]), kinds, grids)
    return ids, positions[:, 0].numpy()
