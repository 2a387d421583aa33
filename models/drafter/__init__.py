"""Block drafters (DFlash, DFlash2, DSpark): configuration, tensors, and a NumPy forward pass, the specification.

A small network of its own file drafts several tokens in one pass, from the model's residual stream at some layers.
"""
