"""Options that commands do not have: those of llama.cpp, Ollama and vLLM, each with what to use."""

from __future__ import annotations

from collections.abc import Collection

_IN_THE_FILE = "not needed: the GGUF file says so"
_DRAFTS = "not needed: the MTP head and repetitions of the text both draft; --draft-tokens fixes their number"
_EXPERTS = "--gpu-memory 12G leaves experts that do not fit to the CPU, --experts cpu all of them"
# What users of other programs may type: what to do instead, and the option of ours that it takes, if any.
_OTHERS: tuple[tuple[str, str, str | None], ...] = (
    # The model and its files.
    ("-m --model --model-path", "the model is the first argument, without an option", None),
    ("-mu --model-url", "download the model first, then give its .gguf file", None),
    ("-hff --hf-file", "name the quantisation: -hf USER/REPO:Q4_K_M", "--hf-repo"),
    ("-hft --hf-token", "set the variable HF_TOKEN", "--hf-repo"),
    ("--revision", "download that revision, and give its .gguf file", "--hf-repo"),
    ("--offline", "set the variable HF_HUB_OFFLINE=1", "--hf-repo"),
    ("--download-dir", "set the variable HF_HOME", "--hf-repo"),
    ("--models-dir --models-preset --models-max", "name each model: --model NAME=FILE.gguf", "--idle-minutes"),
    ("-mm", "use --mmproj", "--mmproj"),
    ("-mmu --mmproj-url", "download the file, and name it with --mmproj", "--mmproj"),
    (
        "--no-mmproj --no-mmproj-offload",
        "not needed: a vision tower takes no memory until a prompt has an image",
        "--mmproj",
    ),
    ("--image-max-tokens", "use --image-tokens", "--image-tokens"),
    ("--audio --video", "audio and video are not supported; --image shows images", "--image"),
    (
        "--lora --lora-scaled --lora-init-without-apply --enable-lora --lora-modules --max-lora-rank --control-vector",
        "adapters are not supported; merge them into the model, and convert that to GGUF",
        None,
    ),
    ("--override-kv --hf-overrides", "change the file's keys with gguf-set-metadata of the package gguf", None),
    ("--dtype -q --quantization --load-format --tokenizer --tokenizer-mode --trust-remote-code", _IN_THE_FILE, None),
    # Devices and memory.
    (
        "-ngl --gpu-layers --n-gpu-layers --num-gpu",
        "--device cuda runs all layers that fit on the GPU; --gpu-memory 12G says how much memory they may take",
        "--device",
    ),
    ("-dev --gpu", "use --device", "--device"),
    ("--list-devices", "'trigraph doctor --device cuda' says whether a GPU can be used", None),
    (
        "-mg --main-gpu -sm --split-mode -tp --tp --tensor-parallel-size -pp --pipeline-parallel-size --gpus "
        "--enable-expert-parallel",
        "--device cuda:0,cuda:1 puts some layers on each GPU, and --device cuda:1 takes the second",
        "--device",
    ),
    ("-ts --tensor-split", "use --split, with --device cuda:0,cuda:1", "--split"),
    (
        "-dp --dp --data-parallel-size --workers --rpc --distributed-executor-backend --headless --api-server-count",
        "--replicas deploys engines on a Ray cluster",
        "--replicas",
    ),
    ("-ncmoe --n-cpu-moe -cmoe --cpu-moe -ot --override-tensor --cpu-offload-gb", _EXPERTS, "--gpu-memory"),
    ("-fit --fit --fit-target --fit-ctx", "not needed: what does not fit on the GPU is the CPU's", "--gpu-memory"),
    (
        "--gpu-memory-utilization --mem-fraction-static --kv-cache-memory-bytes",
        "--kv-memory sets the memory for keys and values",
        "--kv-memory",
    ),
    (
        "-cram --cache-ram --ctx-checkpoints --swa-checkpoints --swap-space",
        "--kv-memory sets the memory for keys and values, and with it that for cached states",
        "--kv-memory",
    ),
    ("--slot-save-path", "--cache-dir keeps the state of prompts on disk", "--cache-dir"),
    ("-nkvo --no-kv-offload", "keys and values are kept where --device computes", "--device"),
    ("-ctk -ctv --cache-type-k --cache-type-v --kv-cache-dtype", "use --kv-type", "--kv-type"),
    ("-nr --no-repack", "use --repack off", "--repack"),
    (
        "--mlock --no-mmap --mmap -dio --direct-io --no-warmup --warmup",
        "not needed: weights are always mapped",
        None,
    ),
    ("--numa -C --cpu-mask --cpu-range --prio --poll", "not needed; numactl and taskset choose processors", None),
    ("-tb --threads-batch", "-t sets the threads of prompts, too", "--threads"),
    ("-b -ub --batch-size --ubatch-size --max-num-batched-tokens", "not needed: batch sizes follow the model", None),
    (
        "-fa --flash-attn --enforce-eager --block-size --attention-backend",
        "not needed: attention is always fused and paged",
        None,
    ),
    # Context.
    ("--max-model-len --n-ctx --num-ctx --context --context-length", "use --ctx-size", "--ctx-size"),
    (
        "--rope-scale --rope-freq-scale --rope-freq-base --yarn-orig-ctx --yarn-ext-factor --yarn-attn-factor "
        "--yarn-beta-slow --yarn-beta-fast",
        "use --rope-scaling yarn:FACTOR",
        "--rope-scaling",
    ),
    ("--context-shift --no-context-shift --keep -gan --grp-attn-n", "the context ends at --ctx-size", "--ctx-size"),
    ("--prompt-cache-all --prompt-cache-ro", "not needed: --prompt-cache keeps the whole state", "--prompt-cache"),
    # Speculation.
    (
        "--model-draft --spec-draft-model --speculative-model",
        "use --draft-model with a block drafter; other models do not draft",
        "--draft-model",
    ),
    (
        "-cd --ctx-size-draft -td --threads-draft -devd --device-draft -ngld --n-gpu-layers-draft -cmoed -otd",
        "not needed: drafts are computed where the model is",
        "--draft-model",
    ),
    (
        "--draft-p-min --spec-draft-p-min",
        "not needed: drafts are made where they pay; --draft-tokens fixes their number",
        "--draft-tokens",
    ),
    ("-hfd --hf-repo-draft", "download the drafter, and name its file with --draft-model", "--draft-model"),
    (
        "--draft --draft-n --draft-max --draft-min --spec-draft-n-max --spec-draft-n-min --num-speculative-tokens",
        "use --draft-tokens",
        "--draft-tokens",
    ),
    (
        "--spec-type --spec-default --speculative-config --speculative-algorithm -lcs -lcd --lookup-cache-static",
        _DRAFTS,
        "--draft-tokens",
    ),
    # The prompt, the reply, and what is chosen.
    ("-cnv --conversation -i --interactive -if --interactive-first", "without a prompt, run starts a chat", "--prompt"),
    ("-no-cnv --no-cnv --no-conversation", "--raw completes a prompt without the chat template", "--raw"),
    ("-st --single-turn", "-p answers one message", "--prompt"),
    ("--system", "use --system-prompt", "--system-prompt"),
    ("-sysf --system-prompt-file", 'use --system-prompt "$(cat FILE)"', "--system-prompt"),
    ("--in-prefix --in-suffix", "--raw takes the prompt as it is", "--raw"),
    ("-e --escape --no-escape", "the prompt is taken as it is; most shells write a new line as $'\\n'", "--prompt"),
    ("--jinja --no-jinja", "the chat template is always used; --raw leaves it out", "--raw"),
    ("--jinja --no-jinja", "not needed: the chat template is always used", None),
    ("--chat-template", "use --chat-template-file", "--chat-template-file"),
    ("--enable-thinking --thinking", "use --think", "--think"),
    ("--disable-thinking --nothink", "use --no-think", "--think"),
    ("--hidethinking", "use --reasoning hide", "--tools"),
    ("-rea --reasoning", "use --think or --no-think", "--think"),
    (
        "--reasoning-format --reasoning-parser --tool-call-parser --enable-auto-tool-choice --enable-reasoning",
        "not needed: the chat template tells reasoning, content and tool calls apart",
        None,
    ),
    ("--max-new-tokens --num-predict", "use --max-tokens", "--max-tokens"),
    ("-r --reverse-prompt", "use --stop", "--stop"),
    ("-l", "use --logit-bias", "--logit-bias"),
    ("--repetition-penalty", "use --repeat-penalty", "--repeat-penalty"),
    (
        "--repeat-last-n",
        "penalties consider as many tokens as the model asks for, or 64; requests to serve may set repeat_last_n",
        "--repeat-penalty",
    ),
    ("-jf --json-schema-file --format", "use -j, which takes a file, too", "--json-schema"),
    ("--grammar-file", "use --grammar", "--grammar"),
    ("--samplers --sampling-seq --sampler-seq", "the order is penalties, temperature, top-k, top-p, min-p", "--top-k"),
    (
        "--mirostat --mirostat-lr --mirostat-ent --dry-multiplier --dry-base --dry-allowed-length "
        "--dry-penalty-last-n --dry-sequence-breaker --xtc-probability --xtc-threshold --typical --top-nsigma "
        "--top-n-sigma --dynatemp-range --dynatemp-exp --adaptive-target --adaptive-decay",
        "not offered; --top-k, --top-p and --min-p are",
        "--top-k",
    ),
    ("--generation-config --override-generation-config", "--temp, --top-k and the like set defaults", "--top-k"),
    # The server.
    ("--parallel --n-parallel --max-num-seqs", "use --max-sequences", "--max-sequences"),
    ("-cb --cont-batching -nocb --no-cont-batching", "not needed: requests are always decoded together", None),
    (
        "--cache-prompt --no-cache-prompt --cache-reuse --enable-prefix-caching "
        "--no-enable-prefix-caching --disable-radix-cache --enable-chunked-prefill --chunked-prefill-size",
        "not needed: prompts always reuse the prefix that they share with earlier ones",
        None,
    ),
    (
        "-kvu --kv-unified -sps --slot-prompt-similarity --swa-full",
        "not needed: all requests share the memory for keys and values",
        None,
    ),
    ("--served-model-name", "use --alias", "--alias"),
    (
        "--embedding --embeddings --pooling --is-embedding --task --runner",
        "not needed: serve has /v1/embeddings, and Python engine.embed",
        None,
    ),
    ("--rerank --reranking", "reranking is not offered; serve has /v1/embeddings", None),
    ("--metrics --slots --no-slots --props", "not needed: serve has /metrics, /slots and /props", None),
    ("--webui --no-webui --ui --no-ui --path", "serve always has its chat page", None),
    ("--allowed-origins", "use --cors-origin", "--cors-origin"),
    (
        "--ssl-key-file --ssl-cert-file --ssl-keyfile --ssl-certfile --api-prefix --root-path",
        "put a proxy in front of the server, which speaks plain HTTP",
        "--port",
    ),
    ("-p --prompt -f --file --image", "requests bring their prompts; --port is the port", "--host"),
    ("-sys --system-prompt --system -sysf --system-prompt-file", "requests bring their system messages", "--host"),
    (
        "-j --json-schema -jf --json-schema-file --grammar --grammar-file --regex",
        "requests ask for a form: response_format, json_schema, grammar or structured_outputs",
        "--host",
    ),
    ("--no-models-autoload", "not needed: models are loaded when requests ask for them", "--idle-minutes"),
    (
        "--guided-decoding-backend --structured-outputs-config --grammar-backend",
        "not needed: llguidance enforces the form that requests ask for",
        "--host",
    ),
    ("--no-prefill-assistant", "a last message of the assistant's is always continued", "--host"),
    ("--mcp --mcp-config --mcp-servers-config --tools", "requests bring their tools", "--host"),
    ("--public --listen", "use --host 0.0.0.0, with --api-key", "--host"),
    ("--daemon --detach --background", "a service manager keeps servers running, such as systemd", "--host"),
    (
        "--reload --max-logprobs --limit-mm-per-prompt --chat-template-content-format --compilation-config "
        "--async-scheduling --stream-interval --enable-prompt-tokens-details --num-gpu-blocks-override",
        "not needed",
        "--host",
    ),
    ("-to --timeout --threads-http", "not needed: clients end their requests when they like", "--port"),
    ("--sleep-idle-seconds --keepalive --keep-alive", "use --model NAME=FILE and --idle-minutes", "--idle-minutes"),
    ("--keepalive --keep-alive", "not needed: the model stays loaded until the command ends", None),
    # Messages and figures.
    (
        "-lv --log-verbosity --verbosity --log-file --log-disable --verbose-prompt --disable-log-requests --log-level "
        "--uvicorn-log-level --disable-log-stats --enable-log-requests --log-prefix --log-timestamps --log-colors",
        "messages go to stderr, and -v has more of them",
        "--verbose",
    ),
    ("--color --simple-io -sp --special --no-display-prompt --perf --no-perf --nowordwrap", "not needed", None),
    ("--version", "'trigraph --version' prints it", None),
    ("-d --n-depth", "use --contexts", "--contexts"),
    ("-o --output", "use --json", "--json"),
    ("--outtype --quantize --quant --dtype", "not needed: weights stay as they are in the GGUF file", "--out"),
    ("--type --ftype --dtype", "use --quant", "--quant"),
    ("-p --prompt", "-f names the text; - reads stdin", "--chunks"),
    ("--hellaswag --winogrande --multiple-choice --tasks", "lm_eval runs tasks on 'trigraph serve'", "--chunks"),
    ("--mtp -md --draft-model", "not needed: a score makes no drafts", "--chunks"),
    ("--device", "'trigraph doctor --device' says whether a device can be used", "--graph"),
    ("--kl-divergence", "not needed: --against FILE compares with the logits in it", "--against"),
    ("--kl-divergence-base --save-all-logits", "--save-logits writes the file, and --against reads it", "--against"),
)
# Commands of others, and what to do instead.
_COMMANDS: tuple[tuple[str, str], ...] = (
    ("help", "'trigraph --help' lists the commands, and 'trigraph COMMAND --help' the options of one"),
    ("version -v -V", "'trigraph --version' prints the version"),
    ("update upgrade", "in a checkout 'git pull && make run'; otherwise install the newer wheel"),
    ("generate complete completion cli prompt", "use 'trigraph run'"),
    ("info", "use 'trigraph inspect'"),
    ("benchmark", "use 'trigraph bench'"),
    ("test check", "'trigraph doctor' checks this machine"),
    ("ps status", "a server says what it has loaded at /v1/models and /health"),
    ("stop kill unload", "Ctrl-C ends a server, and --idle-minutes unloads models that nobody uses"),
    ("create", "options of run and serve set what a Modelfile sets, and 'serve --config FILE' takes them from a file"),
    ("config", "'trigraph serve --config FILE' takes options from a file"),
    ("cp push", "models are GGUF files, which are copied like any other"),
    ("login signin auth", "set the variable HF_TOKEN"),
    ("search", "look for repositories of GGUF files at https://huggingface.co/models?library=gguf"),
    ("quantize convert", "GGUF files are made by llama.cpp's convert_hf_to_gguf.py and llama-quantize"),
    ("embed embedding embeddings", "serve has /v1/embeddings, and Python engine.embed"),
    ("tokenize detokenize", "serve has /tokenize and /detokenize, and Python engine.tokenizer"),
    ("eval lm-eval", "'trigraph perplexity' scores a text; lm_eval works with 'trigraph serve'"),
)


def remedy_of_command(name: str) -> str | None:
    """What to do in place of a command that trigraph does not have; None where none is known."""
    for names, sentence in _COMMANDS:
        if name in names.split():
            return sentence
    if name.startswith("-"):
        return "options follow the command, such as 'trigraph run MODEL.gguf -p TEXT'"
    return f"'trigraph run {name}' runs a model" if "/" in name or name.endswith(".gguf") else None


def remedy(name: str, ours: Collection[str]) -> str | None:
    """What to do in place of an unknown option, in a command with the options `ours`; None where none is known."""
    for names, sentence, needed in _OTHERS:
        if name in names.split() and (needed is None or needed in ours):
            return sentence
    return None
