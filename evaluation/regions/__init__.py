"""How fast one program for several kernels is, beside torch.compile, a copy and the best programs of its parts
(`bench_regions`), and how long their plan takes to
find (`plan_time`)."""
