"""The names of a block drafter's tensors, as llama.cpp's converter gives them."""

from __future__ import annotations

FC = "fc.weight"
"""From the residual streams that a drafter reads, side by side, to its width."""
CONTEXT_NORM = "enc.output_norm.weight"
FFN_NORM = "ffn_norm.weight"
CONV_PROJ = {"attn": "attn_conv_proj.weight", "ffn": "ffn_conv_proj.weight"}
CONV_BASE = {"attn": "attn_conv_base", "ffn": "ffn_conv_base"}
"""What the convolutions add to the products of CONV_PROJ; the names have no `.weight`."""
SELECTOR_PREDECESSOR = "selector_predecessor.weight"
SELECTOR_SUCCESSOR = "selector_successor.weight"
SELECTOR_HIDDEN = "selector_hidden.weight"
MARKOV_W1 = "markov_w1.weight"
MARKOV_W2 = "markov_w2.weight"
SELECTOR = (SELECTOR_HIDDEN, SELECTOR_PREDECESSOR, SELECTOR_SUCCESSOR)
MARKOV = (MARKOV_W1, MARKOV_W2)
CONFIDENCE = ("conf_proj.weight", "conf_proj.bias")
"""Optional, and not in use: how many drafts to verify is the host's choice."""
D2T = "d2t"
"""The token of each row of the drafter's own output matrix, where it has fewer rows than there are tokens."""
