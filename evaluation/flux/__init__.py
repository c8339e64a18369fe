"""Flux: optimised by kcg, by other methods (the methods table), in PyTorch, and handed over to plain tinygrad."""
