"""Prompts and conversations that were computed before, in memory and in session files."""
