"""The ggml types that kernels read."""

TENSOR_TYPES = (
    "Q4_K", "Q6_K", "Q8_0", "Q5_K", "F32", "Q3_K", "BF16", "Q2_K", "IQ4_XS", "F16", "Q4_0", "Q5_1", "IQ4_NL", "Q5_0",
    "Q4_1", "MXFP4", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S", "TQ2_0", "TQ1_0",
)  # fmt: skip
"""In the order in which a synthetic file of mixed types takes them."""
FLOAT_TYPES = ("F32", "F16", "BF16")
BLOCK_TYPES = tuple(name for name in TENSOR_TYPES if name not in FLOAT_TYPES)
"""A row is a sequence of blocks, each with scales of its own."""
