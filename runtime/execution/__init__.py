"""Sessions of the graphs, the contract they must meet, and the steps that run them."""
