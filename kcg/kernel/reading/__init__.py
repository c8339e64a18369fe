"""One reading of ASTs for all: what a kernel, or several as one, stores over which ranges, and what that is made of.

Nothing here knows a kind of schedule, so what a region can be is read without one being loaded. From below:

- `accesses` addresses and extents, `factors` of products, `indices` and `merging` what is shorter and the same,
  `depth` reductions in reductions, `online` sums that a maximum shifts;
- `contractions` products of two operands, `kernel` one kernel (`read_kernel`);
- `branches`, `cut`, `rows`, `attention` and `vectors` what several kernels come to, `fuse` all of them (`read_region`).

What no one program can be is unsupported, with the construct that is in the way.
"""
