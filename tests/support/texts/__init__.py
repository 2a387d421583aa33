"""Constraints, grammars, prompts."""
