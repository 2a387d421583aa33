"""The command `trigraph verify`: whether a model gives the completions of receipts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from trigraph.exporter import ExportOptions
from trigraph.models.errors import TrigraphError
from trigraph.models.progress import Progress
from trigraph.runtime import Engine, Receipt, load
from trigraph.runtime.cli import arguments
from trigraph.runtime.cli.console import progress_bars, say
from trigraph.runtime.cli.naming import Hub, Model, given_model
from trigraph.runtime.receipt.shown import counted
from trigraph.runtime.receipt.verify import Verdict

_Images = Annotated[
    list[Path] | None, typer.Option(metavar="FILE", help="An image of the prompt; once for each, in their order.")
]

_TOKENS = 64  # of a step: in mixtures of experts, more gain nothing


@dataclass(frozen=True)
class _Case:
    """A receipt to verify."""

    path: Path
    receipt: Receipt
    prompt: list[int]
    signed_by: str | None

    @property
    def length(self) -> int:
        """Tokens of prompt and completion."""
        return len(self.prompt) + len(self.receipt.completion)


@dataclass(frozen=True)
class _Outcome:
    """What came of one: a verdict, or why there is none."""

    path: Path
    verdict: Verdict | None = None
    signed_by: str | None = None
    error: str | None = None

    @property
    def status(self) -> int:
        """The exit status that it asks for."""
        return 2 if self.verdict is None else 0 if self.verdict.equal else 1

    @property
    def text(self) -> str:
        """For people."""
        if self.verdict is None:
            return f"cannot be verified: {self.error}"
        if not self.verdict.equal:
            return f"different: {self.verdict.difference}"
        return f"equal: {self.verdict.tokens} tokens, and the logits that they were chosen from"

    def as_json(self) -> dict[str, object]:
        """For programs."""
        if self.verdict is None:
            return {"error": self.error}
        return asdict(self.verdict) | {"equal": self.verdict.equal, "signed_by": self.signed_by}


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
    rope_scaling: arguments.RopeScaling = None,
    threads: arguments.Threads = None,
    device: arguments.Device = "cpu",
    as_json: arguments.AsJson = False,
) -> None:
    """Compute the completion of a receipt again, and say whether it is equal, or the first token that is not.

    It takes about as long as reading a prompt of that length. The exit status is 1 when anything differs. Of a folder,
    each receipt that is not equal has a line.
    """
    given = given_model(model, hub)
    path, mtp, mmproj = given.path, mtp or given.mtp, mmproj or given.mmproj
    exported = arguments.export_options(path, mtp=mtp, mmproj=mmproj, rope_scaling=rope_scaling)

    def opened(cases: list[_Case], progress: Progress) -> Engine:
        return load(
            path,
            threads=threads,
            context=max(1, *(case.length for case in cases)),
            sequences=1,
            speculation=False,
            max_pending=_TOKENS,
            device=device,
            options=exported if path.is_dir() else _as_the_receipt(exported, cases[0].receipt),
            progress=progress,
        )

    if not file.is_dir():
        case = _case(file, prompt, public_key, image)
        with progress_bars() as progress:
            engine = opened([case], progress)
        outcome = _Outcome(file, engine.verify(case.receipt, case.prompt, image or ()), case.signed_by)
        print(json.dumps(outcome.as_json()) if as_json else outcome.text)
        raise typer.Exit(outcome.status)
    if prompt is not None or image:
        option = "--image" if image else "--prompt"
        raise TrigraphError(f"{file} is a folder, and {option} is of one receipt; name that one")
    outcomes = _verify_all(file, public_key, opened)
    _report(outcomes, as_json=as_json)
    statuses = {outcome.status for outcome in outcomes}
    raise typer.Exit(1 if 1 in statuses else max(statuses))


def _as_the_receipt(options: ExportOptions, receipt: Receipt) -> ExportOptions:
    """Options that export a file as the receipt's model was."""
    activations = None if receipt.model.activations == options.activation_kind else receipt.model.activations
    return replace(options, kv_type=receipt.model.kv_type, activations=activations)


def _case(file: Path, prompt: Path | None, public_key: Path | None, images: list[Path] | None = None) -> _Case:
    """Reads a receipt. Raises TrigraphError for what cannot be verified."""
    receipt = Receipt.read(file)
    signed = _signature(receipt, public_key)
    ids = receipt.prompt if prompt is None else _ids(prompt)
    if ids is None:
        raise TrigraphError(f"{file}: is private, without its prompt; give the prompt's token ids with --prompt")
    _check_images(file, receipt, images)
    return _Case(file, receipt, [*ids], signed)


def _verify_all(
    folder: Path, public_key: Path | None, opened: Callable[[list[_Case], Progress], Engine]
) -> list[_Outcome]:
    """The outcomes of a folder's receipts, in order of their names. The model is loaded once, as the first one has it.

    Raises TrigraphError when there is none, or the model cannot be loaded.
    """
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise TrigraphError(f"{folder}: has no receipts; their names would end with .json")
    cases: list[_Case] = []
    outcomes: dict[Path, _Outcome] = {}
    for path in paths:
        try:
            cases.append(_case(path, None, public_key))
        except TrigraphError as error:
            outcomes[path] = _Outcome(path, error=str(error).removeprefix(f"{path}: "))
    if cases:
        with progress_bars() as progress:
            engine = opened(cases, progress)
        with progress_bars(of_bytes=False) as progress:
            for number, case in enumerate(cases, 1):
                outcomes[case.path] = _outcome(engine, case)
                progress("verify", number, len(cases))
    return [outcomes[path] for path in paths]


def _outcome(engine: Engine, case: _Case) -> _Outcome:
    try:
        return _Outcome(case.path, engine.verify(case.receipt, case.prompt), case.signed_by)
    except TrigraphError as error:
        return _Outcome(case.path, error=str(error))


def _report(outcomes: list[_Outcome], *, as_json: bool) -> None:
    """Prints a line for each outcome in JSON; for people, one for each that is not equal, and their number."""
    for outcome in outcomes:
        if as_json:
            print(json.dumps({"file": str(outcome.path), **outcome.as_json()}))
        elif outcome.status:
            print(f"{outcome.path}: {outcome.text}")
    if not as_json:
        equal = [outcome.verdict.tokens for outcome in outcomes if outcome.verdict and outcome.verdict.equal]
        print(f"equal: {len(equal)} of {len(outcomes)} receipts, {sum(equal)} tokens")


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
