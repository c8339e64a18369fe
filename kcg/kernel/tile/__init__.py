"""Tile programs: Triton source generated from a kernel's AST. This page is the interface; docs/tiles.md is the design.

    kernel = read_region(region)             # kcg.kernel.reading: ranges, loads, reductions, contraction
    parameters = default_parameters(kernel, target)              # prior.py: the analytic prior's choice
    choices = legal_values(kernel, target, parameters, "tile")   # legal.py: of one field, given those before it
    plan = plan_of(kernel, target, parameters)                   # forms.py: all that is decided, without a text
    program = generate(region, target, parameters)               # generate.py: source and how to launch it

What depends on a program's form is asked of `form_of(parameters)` (forms.py): each form is one file, behind `form.py`.
It makes a plan of its view of a kernel, and writes from the plan alone; whether that fits, what it costs and does, and
whether it needs a stress test is read off the plan (`plan.py`).

`read_region` and `generate` raise `UnsupportedTile` where the kernel, or these parameters for it, cannot be expressed;
its `construct` is a short name that tables count by, its message a sentence. Nothing here imports Triton: generating is
text only and takes milliseconds.

What `generate` gives is a `TileSource`: `source` is a Python module that imports Triton alone, `text` the same with a
header for who reads it, and each of `launches` is one `@triton.jit` function in it, run in order as one program:

- `arguments` in the order of the function's parameters: first a pointer for each buffer of the region that the program
  uses (`Argument` with the slot), then the workspace (slot -1) where there is one, then the symbolic variables as
  integers. All sizes are literals in the text: there are no constexprs to bind. Pointers are multiples of 16 bytes.
- `grid` is the number of programs along the first axis; it never depends on a variable.
- `num_warps`, `num_stages`, `maxnreg` (0: unset) and what else the compiler takes are the launch's. Shared memory, and
  the threads of warp specialised programs, are the compiler's to say.
- `workspace_bytes` is what the launches hand to each other (partial results). Where `descriptors` is set the program
  also makes TMA descriptors: Triton takes their memory from its global scratch, `grid` times the compiled metadata's
  `global_scratch_size`, which the caller appends to the workspace.

`generate(..., interpreted=True)` writes the same program for Triton's interpreter, whose bfloat16 is wrong unless it
is widened as it is loaded, and which has no inline assembly.
"""
