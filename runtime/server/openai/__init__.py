"""OpenAI's APIs: chat completions, completions and responses."""
