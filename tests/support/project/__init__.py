"""What the source says of itself."""
