"""llama.cpp itself, from the wheel `xllamacpp`: an oracle that nobody here wrote.

Its server gives token ids, and the log-probabilities of a next token. It serves neither hidden states nor the logits of
an MTP head: those are recorded in tests/oracle.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray


class Llama:
    """A model in llama.cpp's server, in this process. Skips the test where the wheel is missing.

    Keys and values are float32 and attention is not fused, as both would round.
    """

    def __init__(self, path: Path, context: int = 64, pooling: str | None = None) -> None:
        """`pooling`: MEAN or LAST, for a server that gives embeddings."""
        xllamacpp = pytest.importorskip("xllamacpp", reason="xllamacpp is not installed: no comparison with llama.cpp")
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(path)
        parameters.n_ctx = context
        parameters.n_parallel = 1
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
        parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        parameters.warmup = False
        parameters.verbosity = -1
        if pooling is not None:
            parameters.embedding = True
            parameters.pooling_type = getattr(xllamacpp.llama_pooling_type, f"LLAMA_POOLING_TYPE_{pooling}")
        self._server = xllamacpp.Server(parameters)

    def tokenize(self, text: str) -> list[int]:
        """Ids of a text, in which special tokens are read as such."""
        request = {"content": text, "parse_special": True, "add_special": False}
        return list(self.post("/tokenize", request)["tokens"])

    def log_probabilities(self, ids: Sequence[int], vocab: int) -> NDArray[np.float64]:
        """Of every token after `ids`: [vocab], in float32's precision."""
        # They are those of the logits, whatever is sampled. What is sampled must be a character, or nothing is sent.
        sampling = {"n_predict": 1, "temperature": 0, "logit_bias": [[0, 1000]]}
        (first,) = self.post("/completion", {"prompt": list(ids), "n_probs": vocab, **sampling})[
            "completion_probabilities"
        ]
        values = np.full(vocab, np.nan)
        for entry in first["top_logprobs"]:
            values[entry["id"]] = entry["logprob"]
        assert not np.isnan(values).any(), "tokens are missing"
        return values

    def embedding(self, ids: Sequence[int]) -> NDArray[np.float64]:
        """The pooled hidden rows of `ids`, of length 1: [hidden]."""
        (found,) = self.post("/v1/embeddings", {"input": list(ids)})["data"]
        return np.array(found["embedding"])

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The response of its server to a request."""
        connection = HTTPConnection(self._server.listening_address.removeprefix("http://"), timeout=60)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read()
        connection.close()
        assert response.status == 200, content
        return json.loads(content)


def log_softmax(logits: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """What `log_probabilities` should be for logits [..., vocab]."""
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(-1, keepdims=True)))
