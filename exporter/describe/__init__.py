"""What a GGUF file or a package holds, for people: tables and a picture."""
