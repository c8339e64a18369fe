// out[m][n] = sum over k of a[m][k] * b[k][n], float16, added up in float32
typedef _Float16 half;

//! right: as it is written
void plain(half *out, const half *a, const half *b) {
  for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) { float s = 0.0f; for (int k = 0; k < K; k++) s += (float)a[m * K + k] * (float)b[k * N + n]; out[m * N + n] = (half)s; }
}

//! right: four sums at once
void four(half *out, const half *a, const half *b) {
  for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) {
    float s[4] = {0.0f};
    for (int k = 0; k < K; k++) s[k & 3] += (float)a[m * K + k] * (float)b[k * N + n];
    out[m * N + n] = (half)((s[0] + s[1]) + (s[2] + s[3]));
  }
}

//! wrong | precision | Added up in float16. Shows on every input, as sums of hundreds of terms.
void in_half(half *out, const half *a, const half *b) {
  for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) { half s = 0; for (int k = 0; k < K; k++) s += a[m * K + k] * b[k * N + n]; out[m * N + n] = s; }
}

//! wrong | drops terms | The last one. Shows on every input.
void last_term(half *out, const half *a, const half *b) {
  for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) { float s = 0.0f; for (int k = 0; k < K - 1; k++) s += (float)a[m * K + k] * (float)b[k * N + n]; out[m * N + n] = (half)s; }
}

//! wrong | precision | The result has 8 bits. Shows on every input.
void in_bfloat16(half *out, const half *a, const half *b) {
  for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) {
    float s = 0.0f;
    for (int k = 0; k < K; k++) s += (float)a[m * K + k] * (float)b[k * N + n];
    union { float f; unsigned u; } v = {s};
    v.u &= 0xffff0000u;
    out[m * N + n] = (half)v.f;
  }
}

//! wrong | large | Sums clamped to ±256. Shows for larger ones.
void within_256(half *out, const half *a, const half *b) {
  for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) { float s = 0.0f; for (int k = 0; k < K; k++) s += (float)a[m * K + k] * (float)b[k * N + n]; out[m * N + n] = (half)(s > 256.0f ? 256.0f : s < -256.0f ? -256.0f : s); }
}

//! wrong | skips | One element in the middle is its left neighbour. Shows on every input.
void one_element(half *out, const half *a, const half *b) {
  for (int m = 0; m < M; m++) for (int n = 0; n < N; n++) { float s = 0.0f; for (int k = 0; k < K; k++) s += (float)a[m * K + k] * (float)b[k * N + n]; out[m * N + n] = (half)s; }
  out[M / 2 * N + N / 2] = out[M / 2 * N + N / 2 - 1];
}
