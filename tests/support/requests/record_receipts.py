"""Records receipts of the shipped model for tests/runtime/receipt/test_recorded_receipts.py:

    cd tests && python -m support.requests.record_receipts

For a new contract version; within one, what was recorded is not changed.
"""

from __future__ import annotations

from pathlib import Path

from trigraph.exporter.package.manifest import CONTRACT_VERSION
from trigraph.models.tiny import TINY_GGUF
from trigraph.runtime import Options, Sampling, load

RECORDED = Path(__file__).parents[2] / "runtime" / "receipt" / "recorded"
PROMPT = "In the beginning God created the heaven and the earth."
SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "filters": Sampling(0.9, top_k=20, top_p=0.95, min_p=0.01, seed=7),
    "no-filters": Sampling(1.3, top_k=0, top_p=1.0, seed=2**63),
    "penalties": Sampling(
        0.8, repeat_penalty=1.2, presence_penalty=0.1, frequency_penalty=0.1, seed=1, logit_bias=((14, -2.5),)
    ),
}


def main() -> None:
    """Writes a file for each way of sampling."""
    engine = load(TINY_GGUF, threads=1)
    for name, sampling in SAMPLINGS.items():
        request = engine.generate(PROMPT, Options(sampling, 64, ignore_eos=True, receipt=True))
        request.run()
        engine.receipt(request).write(RECORDED / f"contract-{CONTRACT_VERSION}-{name}.json")


if __name__ == "__main__":
    main()
