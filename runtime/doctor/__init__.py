"""Whether this machine computes the bits that every other one computes."""
