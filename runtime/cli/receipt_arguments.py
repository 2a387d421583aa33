"""Options of receipts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from trigraph.models.errors import TrigraphError, file_errors
from trigraph.models.staging import check_writable
from trigraph.runtime import Receipt

if TYPE_CHECKING:
    from trigraph.runtime.receipt.signing import Signer


@dataclass(frozen=True)
class ReceiptArguments:
    """The receipt of the completion."""

    panel: ClassVar = "Receipt"
    common: ClassVar[tuple[str, ...]] = ()

    receipt: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a receipt, which 'trigraph verify' checks on any machine."),
    ] = None
    receipt_private: Annotated[
        bool, typer.Option("--receipt-private", help="Leave the prompt out of the receipt, but for its hash.")
    ] = False
    receipt_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Sign the receipt with this Ed25519 private key, in PEM.")
    ] = None

    def writer(self, *, chat: bool) -> Callable[[Receipt], None] | None:
        """Writes a receipt as asked; None where none is wanted.

        Raises TrigraphError, before anything is computed, when it could not be written or signed, or in a chat.
        """
        path = self.receipt
        if path is None:
            if self.receipt_private or self.receipt_key is not None:
                raise TrigraphError("--receipt-private and --receipt-key need --receipt FILE")
            return None
        if chat:
            raise TrigraphError("--receipt needs a prompt (-p or -f)")
        if path.is_dir():
            raise TrigraphError(f"{path}: is a folder; name a file for the receipt")
        with file_errors(path, "written"):
            check_writable(path)
        signer = signer_of(self.receipt_key)

        def write(receipt: Receipt) -> None:
            receipt = receipt if signer is None else signer.sign(receipt)
            (receipt.private() if self.receipt_private else receipt).write(path)

        return write


def signer_of(file: Path | None) -> Signer | None:
    """Signs receipts with the key in a file, if one is given. Raises TrigraphError when the file has none."""
    if file is None:
        return None
    from trigraph.runtime.receipt.signing import Signer

    return Signer(file)
