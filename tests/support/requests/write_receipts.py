"""Writes packages of four small models, and receipts of completions that were made in every way:

    cd tests && python -m support.requests.write_receipts FOLDER --count 250 --short
    trigraph verify FOLDER/tiny-moe/receipts FOLDER/tiny-moe/package

On an emulated arm64 processor, write `tools/arm64.sh ROOT verify` for the second; on the fake device, after tests/cuda,

    LD_LIBRARY_PATH=build/fake_cuda TRIGRAPH_LIBRARY_DIR=build/cuda_emulator trigraph verify ... --device cuda
"""

from __future__ import annotations

import argparse
from pathlib import Path

from support.models.packages import Packages
from support.requests.random_requests import MODELS, folder, requests_of
from support.requests.receipted import CONTEXT, SHORT, SHORT_CONTEXT, completions, shortened
from trigraph.models.synth import write_synthetic
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime import load
from trigraph.runtime.server.cluster import remote_engine, replica


def main() -> None:
    """Writes `count` receipts for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=250)
    parser.add_argument("--short", action="store_true", help=f"at most {SHORT} tokens of a prompt and a completion")
    parser.add_argument("--models", default=",".join(model[0] for model in MODELS))
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    remote_engine._FIRST_PAUSE = replica._GAP = 0.0
    for model in MODELS:
        if model[0] in options.models.split(","):
            _write(options.out / model[0], model, options)


def _write(out: Path, model: tuple[str, ...], options: argparse.Namespace) -> None:
    def synthetic(geometry: str, quant: str) -> Path:
        path = out / f"{geometry}-{quant}.gguf"
        if not path.exists():
            write_synthetic(geometry, path, quant=quant)
        return path

    receipts = out / "receipts"
    receipts.mkdir(parents=True, exist_ok=True)
    made = folder(Packages(out, TINY_GGUF, synthetic), model)
    package = made.rename(out / "package") if not (out / "package").exists() else out / "package"
    vocab = load(package, threads=1, context=CONTEXT).vocab
    asked = requests_of(vocab, options.count, seed=len(model[0]))
    if options.short:
        asked = [shortened(one) for one in asked]
    context = SHORT_CONTEXT if options.short else CONTEXT
    for number, one in enumerate(completions(package, asked, options.device, context=context)):
        one.receipt.write(receipts / f"{number:04}.json")
    print(f"{receipts}: {options.count} receipts", flush=True)


if __name__ == "__main__":
    main()
