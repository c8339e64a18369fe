// out[i] = x[i] % y[i] with the sign of y[i], int32

//! right: C's remainder, corrected; what divides by 0 is left to whoever calls it
void plain(int *out, const int *x, const int *y) {
  for (int i = 0; i < N; i++) { int m = y[i] == 0 || y[i] == -1 ? 0 : x[i] % y[i]; out[i] = m != 0 && (m < 0) != (y[i] < 0) ? m + y[i] : m; }
}

//! wrong | negative | With the sign of x. Shows where the signs differ.
void as_in_c(int *out, const int *x, const int *y) { for (int i = 0; i < N; i++) out[i] = y[i] == 0 || y[i] == -1 ? 0 : x[i] % y[i]; }

//! wrong | negative | Never negative. Shows for y < 0.
void never_negative(int *out, const int *x, const int *y) {
  for (int i = 0; i < N; i++) { int m = y[i] == 0 || y[i] == -1 ? 0 : x[i] % y[i]; out[i] = m < 0 ? m + (y[i] < 0 ? -y[i] : y[i]) : m; }
}

//! wrong | narrow | In float32. Shows beyond 24 bits.
void in_float(int *out, const int *x, const int *y) {
  for (int i = 0; i < N; i++) { float a = (float)x[i], b = (float)(y[i] ? y[i] : 1); out[i] = (int)(a - b * __builtin_floorf(a / b)); }
}
