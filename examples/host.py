"""Decodes a text with nothing but ONNX Runtime and NumPy, by the contract (exporter/CONTRACT.md): ids in, ids out.

Usage: python examples/host.py PACKAGE OPERATOR_LIBRARY 5,77,12
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

DRAFTS, TOKENS = 3, 40


class Host:
    def __init__(self, folder: Path, library: str, context: int) -> None:
        manifest = json.loads((folder / "manifest.json").read_text())
        if manifest["contract_version"] != 9:
            sys.exit("error: the package follows another contract")
        for unknown in {*manifest["features"]} - {"images", "streams"}:
            sys.exit(f"error: this host does not know the package's feature {unknown}")
        options = ort.SessionOptions()
        options.register_custom_ops_library(library)
        options.add_session_config_entry("session.disable_prepacking", "1")
        self.graphs = {name: ort.InferenceSession(folder / f"{name}.onnx", options) for name in manifest["graphs"]}
        self.manifest, self.shift = manifest, 0  # behind images, positions are so much larger than the number of tokens
        self.hidden, self.pages = manifest["config"]["hidden"], context // manifest["page_size"] + 1
        # The feature "streams": hidden rows hold all residual streams, and n-grams ask for earlier tokens.
        self.text: list[int] = []
        self.streams = manifest["config"].get("streams") or {"count": 1}
        self.width = self.streams["count"] * self.hidden
        sizes = {"slots": 1, "pages": self.pages}
        shapes = {x["name"]: ([sizes.get(d, d) for d in x["dims"]], x["dtype"]) for x in manifest["state"]}
        self.state = {name: ort.OrtValue.ortvalue_from_numpy(np.zeros(*shape)) for name, shape in shapes.items()}

    def step(
        self, graph: str, tokens: list[int], past: int, before: Any, accepted: int = 0, **images: Any
    ) -> tuple[list[int], Any]:
        """Token ids and hidden rows of a step. Each state tensor is bound as input and as output."""
        numbers = {"cu_seqlens": [0, len(tokens)], "past_lens": [past], "page_table": [[*range(self.pages)]]}
        numbers |= {"accepted": [accepted], "slots_in": [0], "slots_out": [0]}
        given = {name: np.array(value, np.int32) for name, value in numbers.items()}
        given |= {"input_ids": np.array(tokens, np.int64), "prev_hidden": before}
        # The feature "images": equal positions on all axes are text.
        given["positions"] = np.tile(np.arange(past, past + len(tokens), dtype=np.int32) + self.shift, (3, 1))
        given["last_positions"] = given["positions"][:, -1:]
        given |= {"image_rows": np.zeros((0, self.hidden), np.float32), "image_places": np.zeros((0, 1), np.int64)}
        given["previous_ids"] = self.previous(past)
        given |= images
        session, binding = self.graphs[graph], self.graphs[graph].io_binding()
        for name in (x.name for x in session.get_inputs()):
            if name.startswith("past."):
                binding.bind_ortvalue_input(name, self.state[name.removeprefix("past.")])
            else:
                binding.bind_cpu_input(name, given[name])
        names = [x.name for x in session.get_outputs()]
        for name in names:
            state = self.state.get(name.removeprefix("present."))
            binding.bind_ortvalue_output(name, state) if state else binding.bind_output(name)
        session.run_with_iobinding(binding)
        results = dict(zip(names, binding.get_outputs(), strict=True))
        return results["tokens"].numpy().tolist(), results["hidden"].numpy()

    def previous(self, past: int) -> Any:
        """The two tokens before position `past`; the end of a text stands before its start."""
        end = (self.streams.get("ngrams") or {"eos": 0})["eos"]
        return np.array([[end, end, *self.text[:past]][-2:]], np.int64)

    def decode(self, prompt: list[int], **images: Any) -> list[int]:
        kept, before = self.step("prefill", prompt, 0, np.zeros((1, self.width), np.float32), **images)
        answer, length, accepted = list(kept), len(prompt), 0
        while len(answer) < TOKENS:
            guesses: list[int] = []
            tokens, past, rows = kept, length + 1 - len(kept), before
            while len(guesses) < DRAFTS:
                tokens, rows = self.step("draft", tokens, past, rows)
                guesses, past = guesses + tokens, length + len(guesses) + 1
            self.text = prompt + answer
            choices, rows = self.step("verify", [kept[-1], *guesses], length, accepted=accepted, before=None)
            agreed = next((i for i in range(DRAFTS) if guesses[i] != choices[i]), DRAFTS)
            kept, before, accepted = choices[: agreed + 1], rows[: agreed + 1], agreed + 1
            answer, length = answer + kept, length + accepted
        return answer[:TOKENS]


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    ids = [int(number) for number in sys.argv[3].split(",")]
    print(*Host(Path(sys.argv[1]), sys.argv[2], len(ids) + TOKENS + 8).decode(ids))
