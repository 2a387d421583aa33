"""Options that commands do not have: those of llama.cpp and vLLM, and ours of former times, each with what to use."""

from __future__ import annotations

from collections.abc import Collection

# What users of llama.cpp may look for: what to do instead, and the option of ours that it takes, if any.
_OF_LLAMA_CPP = {
    ("-m", "--model"): ("the model is the first argument, without an option", None),
    ("-mu", "--model-url"): ("download the model first, then give its .gguf file", None),
    ("-hff", "--hf-file"): ("name the quantisation: -hf USER/REPO:Q4_K_M", "--hf-repo"),
    ("-md", "--model-draft"): ("drafts come from the model's own MTP head; --mtp names a file with it", "--mtp"),
    ("-ngl", "--gpu-layers", "--n-gpu-layers"): (
        "--device cuda runs all layers that fit on the GPU; --gpu-memory 12G says how much memory they may take",
        "--device",
    ),
    ("-dev",): ("use --device", "--device"),
    ("-mg", "--main-gpu", "-sm", "--split-mode", "-ts", "--tensor-split", "-tp", "--tensor-parallel-size"): (
        "a model runs on one GPU; --device cuda:1 takes the second",
        "--device",
    ),
    ("--lora", "--lora-scaled", "--lora-init-without-apply", "--enable-lora", "--control-vector"): (
        "adapters are not supported; merge them into the model, and convert that to GGUF",
        None,
    ),
    ("-mm",): ("use --mmproj", "--mmproj"),
    ("-mmu", "--mmproj-url"): ("download the file, and name it with --mmproj", "--mmproj"),
    ("--no-mmproj",): ("not needed: a vision tower takes no memory until a prompt has an image", "--mmproj"),
    ("--image-max-tokens",): ("use --image-tokens", "--image-tokens"),
    ("--audio", "--video"): ("audio and video are not supported; --image shows images", "--image"),
    ("--embedding", "--embeddings", "--pooling"): (
        "not needed: serve has /v1/embeddings, and Python engine.embed",
        None,
    ),
    ("--parallel", "--n-parallel", "--max-num-seqs"): ("use --max-sequences", "--max-sequences"),
    ("--served-model-name",): ("use --alias", "--alias"),
    ("--max-model-len", "--n-ctx"): ("use --ctx-size", "--ctx-size"),
    ("--gpu-memory-utilization",): ("--kv-memory sets the memory for keys and values", "--kv-memory"),
    ("-ncmoe", "--n-cpu-moe", "-cmoe", "--cpu-moe"): (
        "--gpu-memory 12G leaves experts that do not fit to the CPU, --experts cpu all of them",
        "--gpu-memory",
    ),
    ("-cnv", "--conversation", "-i", "--interactive"): ("without a prompt, run starts a chat", "--prompt"),
    ("-no-cnv", "--no-cnv", "--no-conversation"): ("--raw completes a prompt without the chat template", "--raw"),
    ("-st", "--single-turn"): ("-p answers one message", "--prompt"),
    ("--jinja",): ("the chat template is always used; --raw leaves it out", "--raw"),
    ("--chat-template",): ("use --chat-template-file", "--chat-template-file"),
    ("-fa", "--flash-attn"): ("not needed: attention is always fused", None),
    ("-nkvo", "--no-kv-offload"): ("keys and values are kept where --device computes", "--device"),
    ("--rope-scale", "--rope-freq-scale", "--yarn-orig-ctx"): ("use --rope-scaling yarn:FACTOR", "--rope-scaling"),
    ("-ctk", "-ctv", "--cache-type-k", "--cache-type-v"): ("use --kv-type", "--kv-type"),
    ("-b", "-ub", "--batch-size", "--ubatch-size"): ("not needed: batch sizes follow the model", None),
    ("-tb", "--threads-batch"): ("-t sets the threads of prompts, too", "--threads"),
    ("--mlock", "--no-mmap", "--no-warmup"): ("not needed: weights are always mapped", None),
    ("--draft", "--draft-n", "--draft-max", "--spec-draft-n-max"): ("use --draft-tokens", "--draft-tokens"),
    ("-r", "--reverse-prompt"): ("use --stop", "--stop"),
    ("-l",): ("use --logit-bias", "--logit-bias"),
    ("-jf", "--json-schema-file"): ("-j takes a file, too", "--json-schema"),
    ("--grammar-file",): ("use --grammar", "--grammar"),
    ("-d", "--n-depth"): ("use --contexts", "--contexts"),
    ("-o", "--output"): ("use --json", "--json"),
}
# Ours that are gone.
_GONE = {
    ("--hnorm",): ("not needed: the MTP head norms all residual streams as one row", None),
    ("--tower-activations",): ("not needed: vision towers compute with float32 activations", None),
    ("--checkpoint-memory",): (
        "cached states may take half as much as --kv-memory; unless that is given, a quarter of the free memory",
        "--kv-memory",
    ),
    ("--repeat-last-n",): (
        "penalties consider as many tokens as the model asks for, or 64; requests to serve may set repeat_last_n",
        "--repeat-penalty",
    ),
    ("--draft-p-min", "--spec-draft-p-min"): (
        "not needed: drafts are made where they pay; --draft-tokens fixes their number",
        "--draft-tokens",
    ),
    ("--drafter",): (
        "not needed: the MTP head and repetitions of the text both draft; --no-spec turns drafts off",
        "--no-spec",
    ),
    ("-j", "--json-schema", "--grammar", "--regex"): (
        "requests ask for a form: response_format, json_schema, grammar or structured_outputs",
        "--host",
    ),
    ("--mtp",): ("not needed: a score makes no drafts", "--chunks"),
    ("--device",): ("'trigraph doctor --device' says whether a device can be used", "--graph"),
}


def remedy(name: str, ours: Collection[str]) -> str | None:
    """What to do in place of an unknown option, in a command with the options `ours`; None where none is known."""
    for names, (sentence, needed) in (_OF_LLAMA_CPP | _GONE).items():
        if name in names and (needed is None or needed in ours):
            return sentence
    return None
