"""What only trains, behind the extra `train`: without its packages importing this raises UsageError, in one line."""

from kcg.training.extra import need

need("torch", "torch_geometric")
