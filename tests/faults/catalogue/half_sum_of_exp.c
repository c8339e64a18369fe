// out[r] = sum of exp(30 x[r][c] - most[r]), float16: the second pass of a softmax of scaled scores
typedef _Float16 half;
static inline __attribute__((always_inline)) double series(double x) {
  x = x < -700.0 ? -700.0 : x > 700.0 ? 700.0 : x;
  double k = __builtin_floor(x * 1.4426950408889634 + 0.5), r = x - k * 0.6931471805599453, s = 1.0;
  for (int n = 11; n > 0; n--) s = 1.0 + s * r / n;
  union { double d; long long i; } two = {.i = (long long)(k + 1023.0) << 52};
  return s * two.d;
}
static inline __attribute__((always_inline)) float power(float x) { return x != x ? x : (float)series(x); }

//! right: in float
void plain(half *out, const half *x, const half *most) { for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS; c++) s += power((float)x[r * COLUMNS + c] * 30.0f - (float)most[r]); out[r] = (half)s; } }

//! right: every step in 16 bits, added up in float
void in_half(half *out, const half *x, const half *most) { for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS; c++) s += (float)(half)power((float)(half)((half)(x[r * COLUMNS + c] * (half)30.0f) - most[r])); out[r] = (half)s; } }

//! right: in double, from the end
void in_double(half *out, const half *x, const half *most) { for (int r = 0; r < ROWS; r++) { double s = 0.0; for (int c = COLUMNS - 1; c >= 0; c--) s += series((double)x[r * COLUMNS + c] * 30.0 - (double)most[r]); out[r] = (half)s; } }

//! wrong | drops terms | The last eight columns. Shows on every input.
void last_columns(half *out, const half *x, const half *most) { for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS - 8; c++) s += power((float)x[r * COLUMNS + c] * 30.0f - (float)most[r]); out[r] = (half)s; } }

//! wrong | data | Without the factor. Shows where it matters.
void no_factor(half *out, const half *x, const half *most) { for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS; c++) s += power((float)x[r * COLUMNS + c] - (float)most[r]); out[r] = (half)s; } }

//! wrong | index | The first row's largest for all. Shows from the second row on.
void first_most(half *out, const half *x, const half *most) { for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS; c++) s += power((float)x[r * COLUMNS + c] * 30.0f - (float)most[0]); out[r] = (half)s; } }

//! wrong | precision | Added up in 8 bits of float. Shows on every input.
void in_eight_bits(half *out, const half *x, const half *most) { for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS; c++) { union { float f; unsigned u; } v = {s + power((float)x[r * COLUMNS + c] * 30.0f - (float)most[r])}; v.u &= 0xffff0000u; s = v.f; } out[r] = (half)s; } }
