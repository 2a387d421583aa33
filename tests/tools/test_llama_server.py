"""llama.cpp's server under a load of requests, in a process of its own."""

from pathlib import Path

import pytest

from peers.llama_server import LlamaServer
from peers.llama_server_process import arrivals
from trigraph.models.errors import TrigraphError
from trigraph.runtime.bench.load import Load
from trigraph.runtime.bench.random_tokens import RandomTokens


@pytest.mark.parametrize(
    ("seen", "burst", "expected"),
    [
        ([(1.0, 1), (2.0, 2), (2.5, 3), (2.5, 3)], 0.0, [1.0, 2.0, 2.5]),
        ([(1.0, 1), (4.0, 4)], 0.0, [1.0, 2.0, 3.0, 4.0]),  # two tokens were held back
        ([(3.0, 2)], 0.0, [3.0, 3.0]),
        ([(1.0, 1), (1.5, 2), (1.5005, 3), (1.502, 4)], 0.001, [1.0, 1.5, 1.502]),
    ],
)
def test_when_tokens_of_a_server_came(seen: list[tuple[float, int]], burst: float, expected: list[float]) -> None:
    assert arrivals(seen, burst) == pytest.approx(expected)


@pytest.mark.parametrize("mtp", [False, True])
def test_llama_cpp_serves_a_load(tiny_gguf: Path, mtp: bool) -> None:
    pytest.importorskip("xllamacpp", reason="xllamacpp is not installed: nothing to compare with")
    server = LlamaServer(tiny_gguf, threads=1, context=64, slots=2, mtp=mtp)
    try:
        done = server.serve(Load.draw(RandomTokens(1000), requests=3, prompt=16, tokens=9, concurrency=2))
        for served in done.served:
            assert served.tokens == 9
            assert served.submitted < served.arrivals[0]
            assert served.arrivals == sorted(served.arrivals)
            assert mtp or (len(served.arrivals), served.drafted) == (9, 0)
        assert mtp == (sum(served.drafted for served in done.served) > 0)
        assert done.peak_memory is None or done.peak_memory > 1_000_000
        with pytest.raises(TrigraphError, match="exceeds the available context size"):
            server.serve(Load([[5] * 600], 4, 1))
    finally:
        server.close()


def test_a_file_that_llama_cpp_cannot_serve_is_named(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="xllamacpp is not installed: nothing to compare with")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    with pytest.raises(TrigraphError, match=r"broken\.gguf: llama.cpp cannot serve this file"):
        LlamaServer(tmp_path / "broken.gguf", threads=1, context=64, slots=1)
