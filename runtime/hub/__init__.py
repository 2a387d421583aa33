"""Models by name: the files of a repository on Hugging Face, or a mirror of it, in the local cache."""
