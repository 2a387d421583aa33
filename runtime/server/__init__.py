"""The engine behind HTTP, in the shapes of the APIs that clients speak."""
