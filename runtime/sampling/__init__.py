"""What the next token may be, and which one is drawn: filters, seeded draws, constraints, thoughts."""
