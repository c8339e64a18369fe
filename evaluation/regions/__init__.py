"""Regions of several kernels: how long their plan takes to find."""
