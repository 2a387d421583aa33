"""Images, and prompts with them."""
