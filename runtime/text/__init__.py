"""Between text and token ids: tokenizer, stop strings and chat templates."""
