"""Attention a row at a time, in C, for kcg to put into a program whose attention is one kernel on a CPU.

    python -m kcg.optimize program.py --device CPU --kernels evaluation/pytorch/kernels/flash_c.py

It keeps one row of scores, float32. C that kcg compiles calls no library, so that 2^x is written out.
"""

from __future__ import annotations

import math

from kcg.kernels import KernelView, handwritten

MOST_TOKENS = 1 << 14  # a row of scores is kept on the stack
LANES = 8


def shape_of(kernel: KernelView) -> tuple[int, int, int]:
    """(heads, tokens, width) of a kernel that makes scores for the maximum, makes them again, and mixes the values."""
    (_, (width,)), _, (_, keys) = kernel.contractions
    tokens = math.prod(keys)
    return kernel.outputs[0].size // (tokens * width), tokens, width


def is_attention(kernel: KernelView) -> bool:
    """Whether it has the shapes and operations of one. If it is another kernel with these, what is found is wrong."""
    if len(kernel.contractions) != 3 or len(kernel.buffers) != 4 or "EXP2" not in kernel.ops:
        return False
    if any(len(reduced) != 1 for _, reduced in kernel.contractions[:2]) or len({b.size for b in kernel.buffers}) > 1:
        return False
    return kernel.inputs[0].dtype == "float32" and 0 < shape_of(kernel)[1] <= MOST_TOKENS


def powers() -> str:
    """2^x for -1/2 ≤ x ≤ 1/2 as a polynomial: its Taylor series, whose first term left out is below 2^-28."""
    text = "0"
    for n in reversed(range(9)):
        text = f"({text} * x + {math.log(2) ** n / math.factorial(n):.9e}f)"
    return text


@handwritten.c(matches=is_attention)
def flash_attention_in_c(kernel: KernelView) -> str:
    heads, tokens, width = shape_of(kernel)
    lanes = math.gcd(width, LANES)  # sums that go on beside each other, as wide instructions do it
    return f"""
static inline float power_of_two(float x);
void flash_attention_in_c(float* restrict out, const float* restrict q, const float* restrict k,
                          const float* restrict v) {{
  for (int row = 0; row < {heads * tokens}; row++) {{
    const float *query = q + row * {width}, *keys = k + row / {tokens} * {tokens * width};
    const float *values = v + row / {tokens} * {tokens * width};
    float scores[{tokens}], mixed[{width}], highest = -__builtin_inff(), total = 0;
    for (int c = 0; c < {width}; c++) mixed[c] = 0;
    for (int j = 0; j < {tokens}; j++) {{
      float parts[{lanes}] = {{0}}, score = 0;
      for (int c = 0; c < {width}; c += {lanes})
        for (int lane = 0; lane < {lanes}; lane++) parts[lane] += query[c + lane] * keys[j * {width} + c + lane];
      for (int lane = 0; lane < {lanes}; lane++) score += parts[lane];
      scores[j] = score * {math.log2(math.e) / math.sqrt(width):.9e}f;
      highest = scores[j] > highest ? scores[j] : highest;
    }}
    for (int j = 0; j < {tokens}; j++) scores[j] = power_of_two(scores[j] - highest);
    for (int j = 0; j < {tokens}; j++) {{
      total += scores[j];
      for (int c = 0; c < {width}; c++) mixed[c] += scores[j] * values[j * {width} + c];
    }}
    for (int c = 0; c < {width}; c++) out[row * {width} + c] = mixed[c] / total;
  }}
}}
static inline float power_of_two(float x) {{
  if (x < -126.0f) return 0.0f;
  int whole = (int)(x - 0.5f);
  x -= whole;
  union {{ int bits; float value; }} scale = {{ (whole + 127) << 23 }};
  return scale.value * {powers()};
}}
"""
