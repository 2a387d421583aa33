"""A receipt: all that a completion depends on, its tokens, and hashes of the logits that they were chosen from.

docs/reference/receipts.md describes the format.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trigraph.models.decode import decode
from trigraph.models.errors import TrigraphError, file_errors, named, quote
from trigraph.models.staging import staged_file
from trigraph.runtime.cache.identity import ModelIdentity
from trigraph.runtime.receipt.shown import MOST_IMAGES, Shown
from trigraph.runtime.receipt.software import Software
from trigraph.runtime.receipt.terms import Terms
from trigraph.runtime.requests.completion import Completion

FORMAT = "trigraph receipt"
VERSION, IMAGE_VERSION = 1, 2
"""The versions of receipts without images, and with images."""
_UNSEALED = ("prompt", "sha256", "signature")  # `prompt_sha256` stands for the prompt
_REASONS = ("stop", "length", "context", "cancelled", "timeout")
_MAX_BYTES = 8 << 20  # a prompt of a million tokens
_MOST_TOKENS = 1 << 31
_MOST_OBJECTS, _MOST_FIELDS = 16 + MOST_IMAGES, 64
_MOST_ITEMS = 1 << 16  # of a list of the options
ROW_DIGITS = 8
"""Digits of a token in `Receipt.rows`."""
_REMEDY = "ask for another receipt"


@dataclass(frozen=True)
class Signature:
    """An Ed25519 signature of a receipt's content; both in hexadecimal digits."""

    public_key: str
    value: str


@dataclass(frozen=True)
class Receipt:
    """What a completion was made of. `Engine.receipt` makes one, `Engine.verify` computes the completion again."""

    model: ModelIdentity
    software: Software
    options: Terms
    prompt_sha256: str
    completion: tuple[int, ...]
    """All sampled tokens, a final stop token included."""
    finish_reason: str
    rows: str
    """For each token, the first eight digits of the SHA-256 of its logits."""
    logits_sha256: str
    """SHA-256 of the SHA-256s of all tokens' logits, one after the other."""
    prompt: tuple[int, ...] | None = None
    """None in a private receipt."""
    images: Shown | None = None
    """The images of the prompt; None where it has none."""
    signature: Signature | None = None

    @classmethod
    def of(cls, stream: Completion, model: ModelIdentity, tower: str | None = None) -> Receipt:
        """The receipt of a completion; of its tokens so far, if it goes on. `tower`: the hash of what reads images.

        Raises TrigraphError when none was asked for, or the first tokens of the completion were given.
        """
        if not stream.options.receipt:
            raise TrigraphError("no receipt was asked for; give Options(receipt=True)")
        if stream.error is not None:
            raise TrigraphError(f"a completion that failed has no receipt ({stream.error})")
        done = stream.done  # looked at first: then nothing changes any more
        known = len(stream.ids)  # a round in progress records a token's row first
        rows, reason = [*stream.rows], stream.finish_reason
        if len(rows) < known:
            raise TrigraphError(
                f"the completion's first {known - len(rows)} tokens were given as completed, and a receipt has the "
                "logits of all of them; ask for the whole completion again"
            )
        return cls(
            model,
            Software.here(),
            Terms.of(stream.options),
            ids_sha256(stream.prompt),
            tuple(row.token for row in rows),
            reason if done and reason is not None else "cancelled",
            row_digits([row.digest for row in rows]),
            logits_sha256([row.digest for row in rows]),
            tuple(stream.prompt),
            Shown.of(stream.shown, tower),
        )

    @classmethod
    def read(cls, path: str | Path) -> Receipt:
        """Reads a file. Raises TrigraphError when it is not a receipt, or no longer what was written."""
        with file_errors(path):
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise TrigraphError(f"{path}: is not a file")
            with open(path, "rb") as file:
                data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise TrigraphError(f"{path}: has more than {_MAX_BYTES >> 20} MiB; a receipt is far smaller")
        return cls.parse(data, str(path))

    @classmethod
    def parse(cls, data: str | bytes, where: str = "the receipt") -> Receipt:
        """Reads JSON; `where` it is from, for errors. Raises TrigraphError as `read` does."""
        try:
            content = json.loads(data, parse_constant=_refuse, object_pairs_hook=_Objects())
        except (ValueError, RecursionError) as error:
            raise TrigraphError(f"{where}: is not valid JSON ({error})") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise TrigraphError(f"{where}: is not a receipt; its format would be {FORMAT!r}")
        if (version := content.get("version")) not in (VERSION, IMAGE_VERSION):
            raise TrigraphError(
                f"{where}: version is {quote(version)}, this program reads {VERSION} and {IMAGE_VERSION}; install the "
                "version of trigraph that wrote it"
            )
        if isinstance(options := content.get("options"), dict):
            for name, value in options.items():
                if isinstance(value, list) and len(value) > _MOST_ITEMS:
                    raise TrigraphError(f"{where}: options.{name} has more than {_MOST_ITEMS:,} items")
        if content.get("sha256") != _sha256(_canonical(content)):
            raise TrigraphError(f"{where}: was changed since it was written: sha256 differs; {_REMEDY}")
        receipt: Receipt = decode(cls, {"prompt": None, "signature": None, "images": None, **content}, where, _REMEDY)
        if receipt.content != _canonical(content):
            raise TrigraphError(f"{where}: has fields that receipts of version {version} do not have; {_REMEDY}")
        receipt._check(where)
        return receipt

    def private(self) -> Receipt:
        """The receipt without the prompt, of which it keeps the hash; a signature stays valid."""
        return dataclasses.replace(self, prompt=None)

    def signed(self, signature: Signature) -> Receipt:
        """The receipt with a signature of `content`."""
        return dataclasses.replace(self, signature=signature)

    @property
    def content(self) -> bytes:
        """What is hashed and signed: everything but the prompt, the hash and the signature, as canonical JSON."""
        return _canonical(self._fields())

    def as_json(self) -> dict[str, Any]:
        """The receipt as it is written."""
        fields = self._fields()
        signature = fields.pop("signature")
        prompt = fields.pop("prompt")
        fields |= {} if prompt is None else {"prompt": prompt}
        fields["sha256"] = _sha256(self.content)
        return fields | ({} if signature is None else {"signature": signature})

    def as_text(self) -> str:
        """The receipt as text, a field a line."""
        lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in self.as_json().items())
        return "{\n" + ",\n".join(lines) + "\n}\n"

    def write(self, path: str | Path) -> None:
        """Writes a file, whole or not at all. Raises TrigraphError when it cannot be written."""
        with file_errors(path, "written"), staged_file(Path(path)) as stage:
            stage.write_text(self.as_text())

    def _fields(self) -> dict[str, Any]:
        fields = _plain(self)
        if self.images is None:
            del fields["images"]
        return {"format": FORMAT, "version": VERSION if self.images is None else IMAGE_VERSION, **fields}

    def _check(self, where: str) -> None:
        """Raises TrigraphError for values that no receipt has."""
        for name in ("prompt_sha256", "logits_sha256"):
            if not re.fullmatch("[0-9a-f]{64}", value := getattr(self, name)):
                raise TrigraphError(f"{where}: {name} is {quote(value)}; it must have 64 hexadecimal digits")
        if not re.fullmatch("[0-9a-f]*", self.rows) or len(self.rows) != ROW_DIGITS * len(self.completion):
            raise TrigraphError(f"{where}: rows must have {ROW_DIGITS} hexadecimal digits for each token")
        if self.finish_reason not in _REASONS:
            raise TrigraphError(
                f"{where}: finish_reason is {quote(self.finish_reason)}; it must be one of {', '.join(_REASONS)}"
            )
        with named(where):
            ids_sha256(self.completion)
            if self.images is not None:
                self.images.check()
            if self.prompt is not None and ids_sha256(self.prompt) != self.prompt_sha256:
                raise TrigraphError(f"was changed since it was written: prompt_sha256 differs; {_REMEDY}")
        if self.signature is not None and not (
            re.fullmatch("[0-9a-f]{64}", self.signature.public_key)
            and re.fullmatch("[0-9a-f]{128}", self.signature.value)
        ):
            raise TrigraphError(f"{where}: signature is not a key of 64 and a value of 128 hexadecimal digits")


def ids_sha256(ids: Sequence[int]) -> str:
    """SHA-256 of token ids, each as a little-endian int64. Raises TrigraphError for what cannot be one."""
    if ids and not 0 <= min(ids) <= max(ids) < _MOST_TOKENS:
        raise TrigraphError(f"{quote(max(ids, key=abs))} is not a token id")
    return _sha256(np.array(ids, "<i8").tobytes())


def row_digits(digests: Sequence[bytes]) -> str:
    """`Receipt.rows` of the hashes of rows."""
    return "".join(digest.hex()[:ROW_DIGITS] for digest in digests)


def logits_sha256(digests: Sequence[bytes]) -> str:
    """`Receipt.logits_sha256` of the hashes of rows."""
    return _sha256(b"".join(digests))


def _canonical(fields: dict[str, Any]) -> bytes:
    sealed = {name: value for name, value in fields.items() if name not in _UNSEALED}
    return json.dumps(sealed, sort_keys=True, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    """A dataclass as a dict. `dataclasses.asdict` copies every token of a long list by itself."""
    if isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
        return [*map(_plain, value)]
    if not dataclasses.is_dataclass(value):
        return value
    return {name: _plain(item) for name, item in vars(value).items()}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class _Objects:
    """The objects of a receipt's JSON: few, of few fields, each of which is there once."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """An object from its fields."""
        self._count += 1
        if self._count > _MOST_OBJECTS or len(pairs) > _MOST_FIELDS:
            raise ValueError("it has more objects or fields than a receipt")
        if len(fields_by_name := dict(pairs)) < len(pairs):
            raise ValueError("an object has a field twice")
        return fields_by_name


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a number of JSON")
