"""Records the bits of this machine's portable kernels as those of the contract version, in the checkout:

    python -m trigraph.runtime.doctor.record

For a change of contract, or of the definition of an operator; every other set of kernels must then agree.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from trigraph.exporter.package.manifest import CONTRACT_VERSION
from trigraph.runtime.doctor.examine import RECORD, compute, make_packages


def main() -> None:
    """Writes the file beside the tiny model."""
    with tempfile.TemporaryDirectory(prefix="trigraph-") as folder:
        bits = compute("portable", make_packages(Path(folder)))["plain"]
    record = {"contract_version": CONTRACT_VERSION, "bits": bits}
    RECORD.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
