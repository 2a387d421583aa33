"""Signatures of receipts: keys as openssl writes them, and its own check of what we signed."""

from __future__ import annotations

import dataclasses
import random
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="cryptography is not installed: no signatures")
if shutil.which("openssl") is None:
    pytest.skip("openssl is not installed: nothing to compare with", allow_module_level=True)

from support.command import Run
from trigraph.models.errors import TrigraphError
from trigraph.runtime import Options, Receipt, Sampling, load
from trigraph.runtime.receipt.receipt import Signature
from trigraph.runtime.receipt.signing import Signer, check_signature, read_public_key


def openssl(*arguments: object, status: int = 0) -> None:
    assert subprocess.run(["openssl", *map(str, arguments)], capture_output=True, check=False).returncode == status


def make_key(folder: Path, name: str, algorithm: str = "ed25519") -> Path:
    """A private key, and beside it the public one."""
    openssl("genpkey", "-algorithm", algorithm, "-out", folder / name)
    openssl("pkey", "-in", folder / name, "-pubout", "-out", folder / f"{name}.public")
    return folder / name


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_key(tmp_path_factory.mktemp("keys"), "key")


@pytest.fixture(scope="module")
def receipt(tiny_package: Path) -> Receipt:
    engine = load(tiny_package, threads=1, context=64)
    request = engine.generate("And God said", Options(Sampling(seed=1), 8, receipt=True))
    request.run()
    return engine.receipt(request)


def test_openssl_agrees(receipt: Receipt, key: Path, tmp_path: Path) -> None:
    signed = Signer(key).sign(receipt)
    assert signed.signature is not None
    (tmp_path / "content").write_bytes(signed.content)
    (tmp_path / "signature").write_bytes(bytes.fromhex(signed.signature.value))
    check = ["pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", f"{key}.public"]
    openssl(*check, "-in", tmp_path / "content", "-sigfile", tmp_path / "signature")
    (tmp_path / "content").write_bytes(signed.content + b" ")
    openssl(*check, "-in", tmp_path / "content", "-sigfile", tmp_path / "signature", status=1)


def test_a_signature_is_of_the_private_receipt_too(receipt: Receipt, key: Path) -> None:
    signed = Receipt.parse(Signer(key).sign(receipt).private().as_text())
    assert signed.prompt is None and signed.signature is not None
    check_signature(signed, read_public_key(Path(f"{key}.public")))
    check_signature(signed)


def test_any_other_content_is_told(receipt: Receipt, key: Path) -> None:
    signed, rng = Signer(key).sign(receipt), random.Random(1)
    assert signed.signature is not None
    others = [
        dataclasses.replace(signed, completion=(*signed.completion[:-1], 7)),
        dataclasses.replace(signed, prompt_sha256="0" * 64),
        dataclasses.replace(signed, options=dataclasses.replace(signed.options, top_p=0.9500001)),
        dataclasses.replace(signed, model=dataclasses.replace(signed.model, name="other")),
    ]
    for _ in range(50):
        value = bytearray.fromhex(signed.signature.value)
        value[rng.randrange(64)] ^= 1 << rng.randrange(8)
        others.append(signed.signed(Signature(signed.signature.public_key, value.hex())))
        public = bytearray.fromhex(signed.signature.public_key)
        public[rng.randrange(32)] ^= 1 << rng.randrange(8)
        others.append(signed.signed(Signature(public.hex(), signed.signature.value)))
    for other in others:
        with pytest.raises(TrigraphError, match="signature is not valid"):
            check_signature(other)


def test_other_keys_and_files(receipt: Receipt, key: Path, tmp_path: Path) -> None:
    other, rsa = make_key(tmp_path, "other"), make_key(tmp_path, "rsa", "RSA")
    signed = Signer(key).sign(receipt)
    with pytest.raises(TrigraphError, match="signed with another key"):
        check_signature(signed, read_public_key(Path(f"{other}.public")))
    with pytest.raises(TrigraphError, match="is not signed"):
        check_signature(receipt)
    for make, path, sentence in (
        (Signer, rsa, "is not an Ed25519 key"),
        (Signer, Path(f"{key}.public"), "is not a private key"),
        (Signer, tmp_path / "missing", "cannot be read"),
        (read_public_key, key, "is not a public key"),
        (read_public_key, Path(f"{rsa}.public"), "is not an Ed25519 key"),
    ):
        with pytest.raises(TrigraphError, match=sentence):
            make(path)
    openssl("pkey", "-in", key, "-aes256", "-passout", "pass:secret", "-out", tmp_path / "locked")
    with pytest.raises(TrigraphError, match="without a password"):
        Signer(tmp_path / "locked")


def test_the_commands(trigraph: Run, tiny_package: Path, key: Path, tmp_path: Path) -> None:
    path = tmp_path / "receipt.json"
    trigraph("run", tiny_package, "-p", "Moses", "-n", "6", "--receipt", path, "--receipt-key", key)
    done = trigraph("verify", path, tiny_package, "--public-key", f"{key}.public")
    assert done.status == 0 and done.err == ""
    done = trigraph("verify", path, tiny_package)
    assert done.status == 0 and "--public-key tells whether that is the right key" in done.err
    done = trigraph("verify", path, tiny_package, "--public-key", f"{make_key(tmp_path, 'other')}.public")
    assert done.status == 2 and "signed with another key" in done.err
    trigraph("run", tiny_package, "-p", "Moses", "-n", "6", "--receipt", path)
    done = trigraph("verify", path, tiny_package, "--public-key", f"{key}.public")
    assert done.status == 2 and "is not signed" in done.err
