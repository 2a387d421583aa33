"""llama-server's own API: completions, infill, and what its clients ask about the server."""
