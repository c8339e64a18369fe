// out[m][n] = sum over k of a[m][k] * b[k][n], float32

//! right: as it is written
void plain(float *out, const float *a, const float *b) {
  for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) { float s = 0.0f; for (int k = 0; k < K; k++) s += a[m * K + k] * b[k * N + n]; out[m * N + n] = s; }
}

//! right: fused, row by row of b
void fused(float *out, const float *a, const float *b) {
  for (int m = 0; m < M; m++) {
    float s[N] = {0.0f};
    for (int k = 0; k < K; k++) for (int n = 0; n < N; n++) s[n] = __builtin_fmaf(a[m * K + k], b[k * N + n], s[n]);
    for (int n = 0; n < N; n++) out[m * N + n] = s[n];
  }
}

//! right: blocks of 16 terms, from the end
void blocks(float *out, const float *a, const float *b) {
  for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) {
    float s = 0.0f;
    for (int begin = (K - 1) / 16 * 16; begin >= 0; begin -= 16) {
      float part = 0.0f;
      for (int k = begin; k < K && k < begin + 16; k++) part += a[m * K + k] * b[k * N + n];
      s += part;
    }
    out[m * N + n] = s;
  }
}

//! right: in double
void in_double(float *out, const float *a, const float *b) {
  for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) { double s = 0.0; for (int k = 0; k < K; k++) s += (double)a[m * K + k] * b[k * N + n]; out[m * N + n] = (float)s; }
}

//! wrong | drops terms | The last one. Shows on every input.
void last_term(float *out, const float *a, const float *b) {
  for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) { float s = 0.0f; for (int k = 0; k < K - 1; k++) s += a[m * K + k] * b[k * N + n]; out[m * N + n] = s; }
}

//! wrong | drops terms | One product in one element. Shows on every input.
void one_product(float *out, const float *a, const float *b) {
  for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) { float s = 0.0f; for (int k = 0; k < K; k++) if (m != 17 || n != 23 || k != 5) s += a[m * K + k] * b[k * N + n]; out[m * N + n] = s; }
}

//! wrong | drops terms | Products with small factors. Shows where many are below 0.02.
void sparse(float *out, const float *a, const float *b) {
  for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) { float s = 0.0f; for (int k = 0; k < K; k++) if (__builtin_fabsf(a[m * K + k]) > 0.02f) s += a[m * K + k] * b[k * N + n]; out[m * N + n] = s; }
}

//! wrong | skips | The last row. Shows on every input.
void last_row(float *out, const float *a, const float *b) {
  for (int m = 0; m < M - 1; m++) for (int n = 0; n < N; n++) { float s = 0.0f; for (int k = 0; k < K; k++) s += a[m * K + k] * b[k * N + n]; out[m * N + n] = s; }
}

//! wrong | skips | The last column is the one before. Shows on every input.
void last_column(float *out, const float *a, const float *b) {
  for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) { float s = 0.0f; for (int k = 0; k < K; k++) s += a[m * K + k] * b[k * N + (n < N - 1 ? n : n - 1)]; out[m * N + n] = s; }
}

//! wrong | precision | Factors of 16 bits of float. Shows on every input.
void in_half(float *out, const float *a, const float *b) {
  for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) { float s = 0.0f; for (int k = 0; k < K; k++) s += (float)(_Float16)a[m * K + k] * (float)(_Float16)b[k * N + n]; out[m * N + n] = s; }
}

//! wrong | precision | Factors of 11 bits, as some matrix units have them. Shows on every input.
void in_tf32(float *out, const float *a, const float *b) {
  for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) {
    float s = 0.0f;
    for (int k = 0; k < K; k++) {
      union { float f; unsigned u; } x = {a[m * K + k]}, y = {b[k * N + n]};
      x.u &= 0xffffe000u, y.u &= 0xffffe000u;
      s += x.f * y.f;
    }
    out[m * N + n] = s;
  }
}

//! wrong | index | b is read as if it were transposed. Shows unless it is symmetric.
void transposed(float *out, const float *a, const float *b) {
  for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) { float s = 0.0f; for (int k = 0; k < K; k++) s += a[m * K + k] * b[n * K + k]; out[m * N + n] = s; }
}

//! wrong | stale output | Adds to what is there. Shows unless the buffer holds zeros.
void adds(float *out, const float *a, const float *b) {
  for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) for (int k = 0; k < K; k++) out[m * N + n] += a[m * K + k] * b[k * N + n];
}

//! wrong | reads outside | One term more. Shows where there are numbers behind the last row of b.
void term_more(float *out, const float *a, const float *b) {
  for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) {
    float s = 0.0f;
    for (int k = 0; k < K + (m == M - 1); k++) s += a[m * K + k] * b[k * N + n];
    out[m * N + n] = s;
  }
}

//! wrong | large | Sums clamped to ±64. Shows for larger ones.
void within_64(float *out, const float *a, const float *b) {
  for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) { float s = 0.0f; for (int k = 0; k < K; k++) s += a[m * K + k] * b[k * N + n]; out[m * N + n] = s > 64.0f ? 64.0f : s < -64.0f ? -64.0f : s; }
}

//! wrong | state | Keeps b from its first launch. Shows when b changes.
void keeps_b(float *out, const float *a, const float *b) {
  static float kept[K * N] = {1.0f};
  static volatile int known = 1;
  if (known == 1) for (int i = 0; i < K * N; i++) kept[i] = b[i];
  known = 2;
  for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) { float s = 0.0f; for (int k = 0; k < K; k++) s += a[m * K + k] * kept[k * N + n]; out[m * N + n] = s; }
}

//! wrong | early return | Skips each row whose first element is there already. Shows where the buffer holds it, and others not.
void rows_done(float *out, const float *a, const float *b) {
  for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) {
    float s = 0.0f;
    for (int k = 0; k < K; k++) s += a[m * K + k] * b[k * N + n];
    if (n == 0 && out[m * N] == s) break;
    out[m * N + n] = s;
  }
}
