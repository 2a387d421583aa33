"""Block drafters (DFlash, DFlash2, DSpark): configuration, tensors, and a NumPy forward pass, the specification.

A block drafter is a small network in a file of its own that drafts several tokens in one pass. What it knows of a text,
its *context*, are keys and values made of the model's residual stream at some layers. A *block* is the known token and
then masks; each of its rows offers candidates for one position.
"""
