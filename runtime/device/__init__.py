"""Where graphs run: memory, kernels and weights of a processor or a GPU."""
