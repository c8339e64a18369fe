"""How fast tile programs are beside torch.compile, a copy, a sum and cuDNN (`bench_tiles`), and which kernels have one
(`coverage`)."""
