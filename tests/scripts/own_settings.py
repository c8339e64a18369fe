"""A program that sets tinygrad up itself, before it imports it, then searches with BEAM and compiles elsewhere."""

import os

os.environ.update(DEFAULT_FLOAT="HALF", BEAM="2", DEBUG="2", PARALLEL="2")
from tinygrad import Context, Tensor
from tinygrad.helpers import BEAM, DEFAULT_FLOAT, PARALLEL

x = Tensor.full((32, 32), 0.5).contiguous().realize()
a = ((x + x.T).contiguous() @ x).realize()
with Context(NOOPT=1, BEAM=0):
    b = (x.sqrt().contiguous().sum(0)).realize()
print(f"{DEFAULT_FLOAT.value} BEAM={BEAM.value} PARALLEL={PARALLEL.value} {a.dtype}")
