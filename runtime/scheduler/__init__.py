"""Many requests at once: which of them a round decodes, and who runs the rounds."""
