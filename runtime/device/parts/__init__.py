"""A model over several memories: which part lies where, and what moves."""
