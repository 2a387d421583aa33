"""The command `trigraph verify`: whether a model gives the completions of receipts."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from trigraph.models.errors import TrigraphError
from trigraph.runtime.cli import arguments
from trigraph.runtime.cli.naming import Hub, Model, given_model
from trigraph.runtime.cli.receipt_cases import Outcome, Verifier, read_ids

_Images = Annotated[
    list[Path] | None, typer.Option(metavar="FILE", help="An image of the prompt; once for each, in their order.")
]


def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The receipt, or a folder of receipts (*.json).")],
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
    draft_model: arguments.DraftModel = None,
    rope_scaling: arguments.RopeScaling = None,
    threads: arguments.Threads = None,
    device: arguments.Device = "cpu",
    as_json: arguments.AsJson = False,
) -> None:
    """Compute the completion of a receipt again, and say whether it is equal, or the first token that is not.

    It takes about as long as reading a prompt of that length. The exit status is 1 when anything differs. Each receipt
    of a folder is judged by itself; those that are not equal have a line.
    """
    given = given_model(model, hub)
    path, mtp, mmproj = given.path, mtp or given.mtp, mmproj or given.mmproj
    exported = arguments.export_options(
        path, mtp=mtp, mmproj=mmproj, draft_model=draft_model, rope_scaling=rope_scaling
    )
    paths = _receipts(file)
    if file.is_dir() and (prompt is not None or image):
        option = "--image" if image else "--prompt"
        raise TrigraphError(f"{file} is a folder, and {option} is of one receipt; name that one")
    ids = None if prompt is None else read_ids(prompt)
    verifier = Verifier(path, exported, device, threads, _key(public_key), ids, tuple(image or ()))
    outcomes = verifier.outcomes(paths)
    if file.is_dir():
        _report(outcomes, as_json=as_json)
    elif (error := outcomes[0].error) is not None:
        raise TrigraphError(f"{file}: {error}")
    else:
        print(json.dumps(_as_json(outcomes[0])) if as_json else _text(outcomes[0]))
    statuses = {outcome.status for outcome in outcomes}
    raise typer.Exit(1 if 1 in statuses else max(statuses))


def _receipts(file: Path) -> list[Path]:
    """The file, or those of a folder in order of their names. Raises TrigraphError when there is none."""
    if not file.is_dir():
        return [file]
    if not (paths := sorted(file.glob("*.json"))):
        raise TrigraphError(f"{file}: has no receipts; their names would end with .json")
    return paths


def _key(file: Path | None) -> str | None:
    if file is None:
        return None
    from trigraph.runtime.receipt.signing import read_public_key

    return read_public_key(file)


def _report(outcomes: list[Outcome], *, as_json: bool) -> None:
    """Prints a line for each outcome in JSON; for people, one for each that is not equal, and their number."""
    for outcome in outcomes:
        if as_json:
            print(json.dumps({"file": str(outcome.path), **_as_json(outcome)}))
        elif outcome.status:
            print(f"{outcome.path}: {_text(outcome)}")
    if not as_json:
        equal = [outcome.verdict.tokens for outcome in outcomes if outcome.verdict and outcome.verdict.equal]
        print(f"equal: {len(equal)} of {len(outcomes)} receipts, {sum(equal)} tokens")


def _text(outcome: Outcome) -> str:
    """For people."""
    if outcome.verdict is None:
        return f"cannot be verified: {outcome.error}"
    if not outcome.verdict.equal:
        return f"different: {outcome.verdict.difference}"
    return f"equal: {outcome.verdict.tokens} tokens, and the logits that they were chosen from"


def _as_json(outcome: Outcome) -> dict[str, object]:
    """For programs."""
    if outcome.verdict is None:
        return {"error": outcome.error}
    return asdict(outcome.verdict) | {"equal": outcome.verdict.equal, "signed_by": outcome.signed_by}
