"""Stand-ins for GPUs, and what machine code says."""
