"""The recipe that made the shipped tiny model (models/tiny/README.md)."""
