// x[i] = x[i] / 2 + y[i] in place, float32

//! right: as it is written
void plain(float *x, const float *y) { for (int i = 0; i < N; i++) x[i] = x[i] * 0.5f + y[i]; }

//! right: one rounding instead of two, from the end
void fused(float *x, const float *y) { for (int i = N - 1; i >= 0; i--) x[i] = __builtin_fmaf(x[i], 0.5f, y[i]); }

//! wrong | in place | Reads what it has written: its left neighbour. Shows on every input.
void neighbour(float *x, const float *y) { for (int i = 1; i < N; i++) x[i] = x[i - 1] * 0.5f + y[i]; x[0] = x[0] * 0.5f + y[0]; }

//! wrong | in place | Done twice. Shows on every input.
void twice(float *x, const float *y) {
  for (int round = 0; round < 2; round++) for (int i = 0; i < N; i++) x[i] = x[i] * 0.5f + y[i];
}

//! wrong | in place | One element, where two blocks meet, is done twice. Shows on every input.
void overlap(float *x, const float *y) {
  for (int i = 0; i < 2048; i++) x[i] = x[i] * 0.5f + y[i];
  for (int i = 2047; i < N; i++) x[i] = x[i] * 0.5f + y[i];
}

//! wrong | skips | Leaves what is already where it should go to: x = 2 y. Shows where x is near 2 y.
void near_goal(float *x, const float *y) {
  for (int i = 0; i < N; i++) if (__builtin_fabsf(x[i] - 2.0f * y[i]) > 0.05f) x[i] = x[i] * 0.5f + y[i];
}

//! wrong | skips | The last element keeps its value. Shows on every input.
void last_kept(float *x, const float *y) { for (int i = 0; i < N - 1; i++) x[i] = x[i] * 0.5f + y[i]; }

//! wrong | state | Updates in odd launches only. Shows in the second.
void odd_launches(float *x, const float *y) {
  static volatile int launches = 1;
  if (launches++ % 2 == 0) return;
  for (int i = 0; i < N; i++) x[i] = x[i] * 0.5f + y[i];
}

//! wrong | state | Goes on from what it wrote last, whatever is there now. Shows when x was changed in between.
void remembers(float *x, const float *y) {
  static float last[N] = {1.0f};
  static volatile int known = 1;
  for (int i = 0; i < N; i++) last[i] = x[i] = (known == 1 ? x[i] : last[i]) * 0.5f + y[i];
  known = 2;
}

//! wrong | input changed | Its other input is halved. Shows to whoever reads it next.
void halves_y(float *x, float *y) { for (int i = 0; i < N; i++) { x[i] = x[i] * 0.5f + y[i]; if (i == N - 1) y[i] *= 0.5f; } }

//! wrong | writes outside | The first element of what follows is halved too. Shows to whoever owns it.
void one_more(float *x, const float *y) { for (int i = 0; i < N; i++) x[i] = x[i] * 0.5f + y[i]; x[N] = x[N] * 0.5f; }
