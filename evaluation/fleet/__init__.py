"""Figures of fleets and of stores of results."""
