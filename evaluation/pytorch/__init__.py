"""kcg beside PyTorch, Triton and kernels by hand, on single layers and whole models: `compare` is the program."""
