"""Receipts to verify: each is judged by itself, by a model that is loaded as it asks for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from trigraph.exporter import ExportOptions, Manifest, read_manifest
from trigraph.exporter.package.reader import is_package
from trigraph.models.errors import TrigraphError
from trigraph.models.gguf_file import GGUFFile
from trigraph.models.progress import Progress
from trigraph.runtime import Engine, Receipt, load
from trigraph.runtime.cache.identity import ModelIdentity
from trigraph.runtime.cli import arguments
from trigraph.runtime.cli.console import progress_bars, say
from trigraph.runtime.device.choice import open_devices
from trigraph.runtime.engine.package_cache import cached_package
from trigraph.runtime.receipt.shown import counted
from trigraph.runtime.receipt.verify import Verdict, check_model

_TOKENS = 64  # of a step: in mixtures of experts, more gain nothing
_SHORT = 4096  # tokens of receipts that share an engine with all shorter ones


@dataclass(frozen=True)
class Outcome:
    """What came of a receipt: a verdict, or why there is none."""

    path: Path
    verdict: Verdict | None = None
    signed_by: str | None = None
    error: str | None = None

    @property
    def status(self) -> int:
        """The exit status that it asks for."""
        return 2 if self.verdict is None else 0 if self.verdict.equal else 1


@dataclass(frozen=True)
class Verifier:
    """The model to verify with, and what is known beside the receipts."""

    model: Path
    exported: ExportOptions
    """How a file is exported, as the user asks; what receipts ask for is added."""
    device: str = "cpu"
    threads: int | None = None
    public_key: str | None = None
    """The key that must have signed."""
    prompt: list[int] | None = None
    """The prompt of a private receipt."""
    images: tuple[Path, ...] = ()

    def outcomes(self, paths: list[Path]) -> list[Outcome]:
        """Verifies receipts; their outcomes in the same order.

        Raises TrigraphError when the model or the device cannot be used for any of them.
        """
        _ = read_manifest(self.model) if is_package(self.model) else GGUFFile.open(self.model)
        open_devices(self.device)
        outcomes: dict[Path, Outcome] = {}
        groups: dict[ExportOptions, list[_Case]] = {}
        for path in paths:
            with _judged(outcomes, [path]):
                case = self._case(path)
                groups.setdefault(self._options(case.model), []).append(case)
        for options, cases in groups.items():
            for engine, group in self._loaded(options, cases, outcomes):
                with engine, progress_bars(of_bytes=False) as progress:
                    for case in group:
                        with _judged(outcomes, [case.path]):
                            outcomes[case.path] = self._outcome(case, engine)
                        progress("verify", len(outcomes), len(paths))
        return [outcomes[path] for path in paths]

    def _case(self, path: Path) -> _Case:
        """Reads a receipt. Raises TrigraphError for what cannot be verified."""
        receipt = Receipt.read(path)
        signed = self._signed_by(receipt)
        if signed is not None and self.public_key is None:
            say(f"note: {path}: signed with {signed}; --public-key tells whether that is the right key")
        prompt = receipt.prompt if self.prompt is None else self.prompt
        if prompt is None:
            raise TrigraphError("is private, without its prompt; give the prompt's token ids with --prompt")
        if receipt.images is not None and not self.images:
            shown = counted(len(receipt.images.images))
            raise TrigraphError(f"is of a completion with {shown}; give each with --image FILE, in their order")
        return _Case(path, receipt.model, len(prompt) + len(receipt.completion))

    def _signed_by(self, receipt: Receipt) -> str | None:
        """The key that has signed it, if any. Raises TrigraphError for a signature that is missing or wrong."""
        if self.public_key is None and receipt.signature is None:
            return None
        from trigraph.runtime.receipt.signing import check_signature

        check_signature(receipt, self.public_key)
        assert receipt.signature is not None
        return receipt.signature.public_key

    def _options(self, model: ModelIdentity) -> ExportOptions:
        """Options that export a file as a receipt's model was; a package is what it is."""
        if self.model.is_dir():
            return self.exported
        activations = None if model.activations == self.exported.activation_kind else model.activations
        return replace(self.exported, kv_type=model.kv_type, activations=activations)

    def _loaded(
        self, options: ExportOptions, cases: list[_Case], found: dict[Path, Outcome]
    ) -> Iterator[tuple[Engine, list[_Case]]]:
        """Engines for cases with these options, one for those of similar lengths: a long one may not fit."""
        fitting: list[_Case] = []
        with progress_bars() as progress, _judged(found, [case.path for case in cases]):
            package = self.model if self.model.is_dir() else cached_package(self.model, options, progress).folder
            manifest = read_manifest(package)
            for case in cases:
                with _judged(found, [case.path]):
                    case.check(manifest)
                    fitting.append(case)
        for _, group in groupby(sorted(fitting, key=lambda case: case.length), lambda case: case.size):
            alike, engine = [*group], None
            with progress_bars() as progress, _judged(found, [case.path for case in alike]):
                engine = self._load(package, alike[-1].length, progress)
            if engine is not None:
                yield engine, alike

    def _load(self, package: Path, context: int, progress: Progress) -> Engine:
        return load(
            package,
            threads=self.threads,
            context=max(1, context),
            sequences=1,
            speculation=False,
            max_pending=_TOKENS,
            device=self.device,
            progress=progress,
        )

    def _outcome(self, case: _Case, engine: Engine) -> Outcome:
        receipt = Receipt.read(case.path)
        return Outcome(case.path, engine.verify(receipt, self.prompt, self.images), self._signed_by(receipt))


@dataclass(frozen=True)
class _Case:
    """A receipt that was read. Its tokens are read again when they are needed: a folder may have millions."""

    path: Path
    model: ModelIdentity
    length: int
    """Tokens of prompt and completion."""

    @property
    def size(self) -> int:
        """Receipts of the same size share an engine."""
        return max(0, (self.length - 1) // _SHORT).bit_length()

    def check(self, manifest: Manifest) -> None:
        """Raises TrigraphError when a package cannot verify it."""
        check_model(self.model, ModelIdentity.of(manifest))
        if self.length > manifest.max_context:
            raise TrigraphError(
                f"has {self.length:,} tokens of prompt and completion; the model was exported for at most "
                f"{manifest.max_context:,}"
            )


def read_ids(path: Path) -> list[int]:
    """Token ids of a prompt: a JSON list, or those of a receipt. Raises TrigraphError for anything else."""
    text = arguments.read_text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TrigraphError(f"{path}: is not valid JSON ({error})") from error
    ids = content.get("prompt") if isinstance(content, dict) else content
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise TrigraphError(f"{path}: is neither a JSON list of token ids nor a receipt with its prompt")
    return ids


@contextmanager
def _judged(found: dict[Path, Outcome], paths: Iterable[Path]) -> Iterator[None]:
    """Takes an error of the block for the outcome of receipts."""
    try:
        yield
    except TrigraphError as error:
        for path in paths:
            found[path] = Outcome(path, error=str(error).removeprefix(f"{path}: "))
