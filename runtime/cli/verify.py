"""The command `trigraph verify`: whether a model gives the completion of a receipt."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from trigraph.models.errors import TrigraphError
from trigraph.runtime import Receipt, load
from trigraph.runtime.cli import arguments
from trigraph.runtime.cli.console import progress_bars, say
from trigraph.runtime.cli.naming import Hub, Model, given_model
from trigraph.runtime.receipt.shown import counted

_Images = Annotated[
    list[Path] | None, typer.Option(metavar="FILE", help="An image of the prompt; once for each, in their order.")
]

_TOKENS = 64  # of a step: in mixtures of experts, more gain nothing


def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The receipt.")],
    model: Model = None,
    hub: Hub = None,
    prompt: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Token ids of the prompt, for a private receipt: a JSON list, or a receipt that has it.",
        ),
    ] = None,
    public_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Require a signature of this Ed25519 public key, in PEM."),
    ] = None,
    image: _Images = None,
    mtp: Annotated[Path | None, typer.Option(help="GGUF file with the MTP head, as for run.")] = None,
    mmproj: arguments.MMProj = None,
    rope_scaling: arguments.RopeScaling = None,
    threads: arguments.Threads = None,
    device: arguments.Device = "cpu",
    as_json: arguments.AsJson = False,
) -> None:
    """Compute the completion of a receipt again, and say whether it is equal, or the first token that is not.

    It takes about as long as reading a prompt of that length. The exit status is 1 when anything differs.
    """
    path, found = given_model(model, hub)
    receipt = Receipt.read(file)
    signed = _signature(receipt, public_key)
    ids = receipt.prompt if prompt is None else _ids(prompt)
    if ids is None:
        raise TrigraphError(f"{file}: is private, without its prompt; give the prompt's token ids with --prompt")
    _check_images(file, receipt, image)
    options = arguments.export_options(path, mtp=mtp or found, mmproj=mmproj, rope_scaling=rope_scaling)
    if not path.is_dir():  # exported as the receipt's model was
        activations = None if receipt.model.activations == options.activation_kind else receipt.model.activations
        options = replace(options, kv_type=receipt.model.kv_type, activations=activations)
    context = max(1, len(ids) + len(receipt.completion))
    with progress_bars() as progress:
        engine = load(
            path,
            threads=threads,
            context=context,
            sequences=1,
            speculation=False,
            max_pending=_TOKENS,
            device=device,
            options=options,
            progress=progress,
        )
    verdict = engine.verify(receipt, ids, image or ())
    if as_json:
        print(json.dumps(asdict(verdict) | {"equal": verdict.equal, "signed_by": signed}))
    elif verdict.equal:
        print(f"equal: {verdict.tokens} tokens, and the logits that they were chosen from")
    else:
        print(f"different: {verdict.difference}")
    if not verdict.equal:
        raise typer.Exit(1)


def _check_images(file: Path, receipt: Receipt, given: list[Path] | None) -> None:
    """Raises TrigraphError, before anything is loaded, where there should be images and are none."""
    if receipt.images is not None and not given:
        shown = counted(len(receipt.images.images))
        raise TrigraphError(f"{file}: is of a completion with {shown}; give each with --image FILE, in their order")


def _signature(receipt: Receipt, public_key: Path | None) -> str | None:
    """The key that has signed the receipt, if any. Raises TrigraphError for a signature that is missing or wrong."""
    if public_key is None and receipt.signature is None:
        return None
    from trigraph.runtime.receipt.signing import check_signature, read_public_key

    check_signature(receipt, None if public_key is None else read_public_key(public_key))
    assert receipt.signature is not None
    if public_key is None:
        say(f"note: signed with {receipt.signature.public_key}; --public-key tells whether that is the right key")
    return receipt.signature.public_key


def _ids(path: Path) -> list[int]:
    text = arguments.read_text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TrigraphError(f"{path}: is not valid JSON ({error})") from error
    ids = content.get("prompt") if isinstance(content, dict) else content
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise TrigraphError(f"{path}: is neither a JSON list of token ids nor a receipt with its prompt")
    return ids
