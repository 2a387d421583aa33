"""Runs the example host, which knows the contract alone, with several versions of ONNX Runtime, and compares the ids.

Usage: python tools/onnxruntime_versions.py [VERSION...]; each is downloaded into a folder of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from trigraph.custom_ops import library_path
from trigraph.exporter import ExportOptions, export
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime import Options, Sampling, load

ROOT = Path(__file__).parents[1]
VERSIONS = ("1.24.4", "1.25.1", "1.26.0", "1.27.0", "1.28.0", "1.29.0", "1.30.0", "1.31.1", "1.32.0")
PROMPT = "In the beginning God created the heaven and the earth."


def main() -> None:
    """Fails when a version gives other ids than our own runtime."""
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "package")
        export(TINY_GGUF, package, ExportOptions(weights="copy"))
        engine = load(package, threads=1, context=256)
        prompt = engine.tokenizer.encode(PROMPT)
        options = Options(Sampling(temperature=0), max_tokens=40, ignore_eos=True, speculate=False)
        request = engine.generate(prompt, options)
        request.run()
        expected = " ".join(map(str, request.ids))
        for version in sys.argv[1:] or VERSIONS:
            found = ids(version, Path(folder, version), package, prompt)
            print(f"{version}: {'the same ids' if found == expected else f'other ids: {found}'}", flush=True)
            failed += [version] if found != expected else []
    sys.exit(f"error: {', '.join(failed)}" if failed else 0)


def ids(version: str, folder: Path, package: Path, prompt: list[int]) -> str:
    """What the host prints with a version, or why it does not."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-compile", "--no-deps"]
    subprocess.run([*pip, "--only-binary", ":all:", "--target", folder, f"onnxruntime=={version}"], check=True)
    host = str(ROOT / "examples" / "host.py")
    command = [sys.executable, host, str(package), str(library_path()), ",".join(map(str, prompt))]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else done.stderr.strip()[-500:]


if __name__ == "__main__":
    main()
