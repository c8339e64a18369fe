"""The runtime predictor: what it scores, what each part of it is worth, how fast it is, and what corrections add."""
