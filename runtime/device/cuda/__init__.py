"""An NVIDIA GPU: memory, the operator library, graphs and their captures."""
