"""Receipts: what a completion was made of, for any machine to compute it again and compare."""
