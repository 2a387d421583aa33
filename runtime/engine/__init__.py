"""A model loaded, and what people do with it: submit, generate, chat."""
