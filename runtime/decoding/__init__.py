"""Choosing tokens: sampling, constraints, drafts and how many of them."""
