"""Flux in kcg and in PyTorch on equal terms: one state dict, the same inputs, steps in turns, outputs compared."""
