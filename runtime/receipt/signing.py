"""Ed25519 signatures of receipts, by the library `cryptography`."""

from __future__ import annotations

from pathlib import Path

from trigraph.models.errors import TrigraphError, file_errors
from trigraph.runtime.receipt.receipt import Receipt, Signature

try:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
except ImportError:
    raise TrigraphError("signatures need cryptography: pip install cryptography") from None

_MAX_BYTES = 1 << 16  # of a key's file


class Signer:
    """A private key, as `openssl genpkey -algorithm ed25519` writes it: PEM, PKCS #8, without a password."""

    def __init__(self, path: Path) -> None:
        """Raises TrigraphError when the file has no such key."""
        try:
            key = load_pem_private_key(_read(path), None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise TrigraphError(f"{path}: is not a private key without a password, in PEM ({error})") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise TrigraphError(f"{path}: is not an Ed25519 key; make one with openssl genpkey -algorithm ed25519")
        self._key = key

    def sign(self, receipt: Receipt) -> Receipt:
        """The receipt with a signature."""
        public = self._key.public_key().public_bytes_raw().hex()
        return receipt.signed(Signature(public, self._key.sign(receipt.content).hex()))


def read_public_key(path: Path) -> str:
    """The public key in a PEM file, as signatures name it. Raises TrigraphError when the file has none."""
    try:
        key = load_pem_public_key(_read(path))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise TrigraphError(f"{path}: is not a public key in PEM ({error})") from error
    if not isinstance(key, Ed25519PublicKey):
        raise TrigraphError(f"{path}: is not an Ed25519 key; openssl pkey -in PRIVATE -pubout writes the public one")
    return key.public_bytes_raw().hex()


def check_signature(receipt: Receipt, public_key: str | None = None) -> None:
    """Raises TrigraphError unless the receipt is signed: with `public_key` where one is given, else with any key."""
    signature = receipt.signature
    if signature is None:
        raise TrigraphError("the receipt is not signed")
    if public_key not in (None, signature.public_key):
        raise TrigraphError(f"the receipt is signed with another key, {signature.public_key}")
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature.public_key))
        key.verify(bytes.fromhex(signature.value), receipt.content)
    except (InvalidSignature, ValueError):
        raise TrigraphError(
            "the receipt's signature is not valid: the receipt was changed after it was signed"
        ) from None


def _read(path: Path) -> bytes:
    with file_errors(path), open(path, "rb") as file:
        return file.read(_MAX_BYTES)
