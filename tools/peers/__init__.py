"""Other engines, as `versus.py` times them: llama.cpp, its server, and ik_llama.cpp."""
