"""Fuzzers, `python -m fuzz TARGET` from the folder `tests`: random damage to what a stranger may give us.

Each case follows from (seed, number) alone, so `--first N --count 1` repeats one.
"""
