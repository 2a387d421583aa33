"""A package on disk: its manifest, its state tensors and the paths in it; what a host needs to read one."""
