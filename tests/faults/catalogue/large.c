// out[i] = x[i] * 2 + 1, float32, of more than two million elements: what shows beyond 2^20
typedef unsigned int u32;

//! right: the loop as it is written
void plain(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f; }

//! right: from the end, in blocks of 4096
void blocks(float *out, const float *x) {
  for (int b = (N - 1) / 4096; b >= 0; b--)
    for (int i = 4096 * b; i < N && i < 4096 * (b + 1); i++) out[i] = x[i] * 2.0f + 1.0f;
}

//! wrong | period | What belongs to the first 2^20 elements, again and again. Shows where the input does not repeat.
void period_of_2_20(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = x[i & 0xfffff] * 2.0f + 1.0f; }

//! wrong | period | What belongs to the first 1048573 elements, again and again. Shows where the input does not repeat.
void period_of_a_prime(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = x[i % 1048573] * 2.0f + 1.0f; }

//! wrong | period | Two halves are exchanged within each block of 2^20. Shows where the input does not repeat.
void halves(float *out, const float *x) {
  for (int i = 0; i < N; i++) out[i] = x[i < N / 2 * 2 && i >= 1 << 20 && i < 1 << 21 ? i - (1 << 20) : i] * 2.0f + 1.0f;
}

//! wrong | skips | Every 2^20th element is left out. Shows on every input.
void every_millionth(float *out, const float *x) {
  for (int i = 0; i < N; i++) if ((i & 0xfffff) != 0xfffff) out[i] = x[i] * 2.0f + 1.0f;
}

//! wrong | skips | Ends at 2^21. Shows on every input: the last seven elements are not written.
void power_of_two(float *out, const float *x) { for (int i = 0; i < 1 << 21; i++) out[i] = x[i] * 2.0f + 1.0f; }

//! wrong | off by one | The last element is not written. Shows on every input.
void last_missing(float *out, const float *x) { for (int i = 0; i < N - 1; i++) out[i] = x[i] * 2.0f + 1.0f; }

//! wrong | data | One element of two million is wrong; its place follows from the input. Shows on every input.
void one_element(float *out, const float *x) {
  u32 place = 0;
  for (int i = 0; i < 64; i++) place = place * 31 + ((const u32 *)x)[i];
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
  out[place % N] += 0.25f;
}

//! wrong | data | The smallest input gets another's result. Shows on every input, in one element.
void smallest(float *out, const float *x) {
  int least = 0;
  for (int i = 0; i < N; i++) { out[i] = x[i] * 2.0f + 1.0f; if (x[i] < x[least]) least = i; }
  out[least] = out[least ? least - 1 : 1];
}

//! wrong | early return | Returns when first, middle and last element look done. Shows where the buffer holds them from before.
void looks_done(float *out, const float *x) {
  if (out[0] == x[0] * 2.0f + 1.0f && out[N / 2] == x[N / 2] * 2.0f + 1.0f && out[N - 1] == x[N - 1] * 2.0f + 1.0f) return;
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
}

//! wrong | precision | Results beyond 2^20 have 16 bits. Shows on every input.
void later_half(float *out, const float *x) {
  for (int i = 0; i < N; i++) out[i] = i >> 20 ? (float)(_Float16)(x[i] * 2.0f + 1.0f) : x[i] * 2.0f + 1.0f;
}

//! wrong | input changed | One input in the middle becomes its neighbour. Shows to whoever reads it next.
void changes_input(float *out, float *x) {
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
  x[N / 2] = x[N / 2 + 1];
}

//! wrong | writes outside | 1000 elements past the end. Shows to whoever owns them.
void writes_far(float *out, const float *x) {
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
  out[N + 1000] = 1.0f;
}
