"""Generating a dataset: which kernels (`kernels`), which schedules of each (`samplers`), in what order (`generate`),
on how many devices (`shards`); and tables in which searches are replayed (`lattice`, `tables`)."""
