"""The vision tower of an mmproj file: configuration, tensors, and a NumPy forward pass, the specification.

It turns patches of an image into rows that a text model reads in place of embeddings.
"""
