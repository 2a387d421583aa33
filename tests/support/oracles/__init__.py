"""What nobody here wrote."""
