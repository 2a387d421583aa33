"""The state of sequences: slots, pages and hidden rows, and who owns them."""
