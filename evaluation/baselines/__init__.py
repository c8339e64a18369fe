"""What the scripts beside this package compare kcg with: PyTorch, Triton, BEAM and kernels written by hand.

cases.py         what is computed: sizes, inputs, a float64 reference
tiny_cases.py    the same in tinygrad; sum_kernels.py: one of them by hand, in UOps, CUDA and PTX
one_kernel.py    attention as one kernel of UOps; kernels/: what takes its place, and the sum in CUDA and PTX
attended.py      attention in float64
torch_cases.py   the same in PyTorch; torch_models.py, triton_rope.py
flux_steps.py    a step of Flux in diffusers; flux_regions.py: its parts
tiny_side.py     a process that runs one contender in tinygrad; torch_side.py: in PyTorch
serving.py       the loop of such a process; clocks.py: its clock
sides.py         starting and asking these processes; turns.py: timing them in turns
tuning.py        kcg on a case
opening.py       common options of the scripts, and how they begin and end
rows.py          finished rows, in the results file; pictures.py: what is drawn of them; reports.py: their table
contenders.py    names, order and colours there; plots.py: lines by size; bars.py; axes.py
"""
