"""Programs as users write them, which know nothing of kcg: what a run on a CPU is measured by."""
