"""Small and odd models, and their files."""
