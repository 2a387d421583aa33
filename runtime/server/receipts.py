"""Receipts of the completions that clients ask for."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field

from trigraph.runtime.receipt.receipt import Receipt
from trigraph.runtime.server.generation import Generation
from trigraph.runtime.server.service import Service

ReceiptWish = Annotated[bool | Literal["private"], Field(description="private leaves the prompt out")]
"""What a request asks for: none, a receipt, or one without the prompt."""


NO_RECEIPT: Mapping[str, Any] = MappingProxyType({})


def receipt_field(service: Service, generation: Generation, wish: ReceiptWish | None) -> Mapping[str, Any]:
    """The field `receipt` of a choice that has ended; nothing where none is wanted."""
    if not wish:
        return NO_RECEIPT
    engine = service.engine
    receipt = Receipt.of(generation.request, engine.identity, engine.tower_sha256)
    if service.settings.signer is not None:
        receipt = service.settings.signer.sign(receipt)
    return {"receipt": (receipt.private() if wish == "private" else receipt).as_json()}
