"""Weights in the order in which a processor reads them."""
