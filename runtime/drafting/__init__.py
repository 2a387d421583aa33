"""How many tokens a round drafts: what rounds cost, how often drafts are right, and the choice."""
