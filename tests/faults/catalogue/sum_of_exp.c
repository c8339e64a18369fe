// out[r] = sum of exp(x[r][c] - most[r]): the second pass of a softmax, float32
static inline __attribute__((always_inline)) double series(double x) {
  x = x < -700.0 ? -700.0 : x > 700.0 ? 700.0 : x;
  double k = __builtin_floor(x * 1.4426950408889634 + 0.5), r = x - k * 0.6931471805599453, s = 1.0;
  for (int n = 11; n > 0; n--) s = 1.0 + s * r / n;
  union { double d; long long i; } two = {.i = (long long)(k + 1023.0) << 52};
  return s * two.d;
}
static inline __attribute__((always_inline)) float power(float x) { return x != x ? x : (float)series(x); }

//! right: in order
void plain(float *out, const float *x, const float *most) {
  for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS; c++) s += power(x[r * COLUMNS + c] - most[r]); out[r] = s; }
}

//! right: from the end, four sums in double
void four(float *out, const float *x, const float *most) {
  for (int r = 0; r < ROWS; r++) {
    double s[4] = {0.0};
    for (int c = COLUMNS - 1; c >= 0; c--) s[c & 3] += power(x[r * COLUMNS + c] - most[r]);
    out[r] = (float)((s[0] + s[1]) + (s[2] + s[3]));
  }
}

//! wrong | drops terms | The last column. Shows on every input.
void last_column(float *out, const float *x, const float *most) {
  for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS - 1; c++) s += power(x[r * COLUMNS + c] - most[r]); out[r] = s; }
}

//! wrong | starts wrong | From 1, as if the largest were counted already. Shows on every input.
void from_one(float *out, const float *x, const float *most) {
  for (int r = 0; r < ROWS; r++) { float s = 1.0f; for (int c = 0; c < COLUMNS; c++) s += power(x[r * COLUMNS + c] - most[r]); out[r] = s; }
}

//! wrong | index | The first row's largest for all. Shows from the second row on.
void first_most(float *out, const float *x, const float *most) {
  for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS; c++) s += power(x[r * COLUMNS + c] - most[0]); out[r] = s; }
}

//! wrong | infinity | NaN for a masked place: -inf times 0. Shows for x = -inf.
void masked_is_nan(float *out, const float *x, const float *most) {
  for (int r = 0; r < ROWS; r++) {
    float s = 0.0f;
    for (int c = 0; c < COLUMNS; c++) { volatile float v = x[r * COLUMNS + c] - most[r]; s += power(v) + 0.0f * v; }
    out[r] = s;
  }
}

//! wrong | large | Exponents at most 20. Shows where a difference is larger.
void at_most_20(float *out, const float *x, const float *most) {
  for (int r = 0; r < ROWS; r++) {
    float s = 0.0f;
    for (int c = 0; c < COLUMNS; c++) { float v = x[r * COLUMNS + c] - most[r]; s += power(v > 20.0f ? 20.0f : v); }
    out[r] = s;
  }
}

//! wrong | negative | Exponents at least -8. Shows where all differences of a row are below it.
void at_least_minus_8(float *out, const float *x, const float *most) {
  for (int r = 0; r < ROWS; r++) {
    float s = 0.0f;
    for (int c = 0; c < COLUMNS; c++) { float v = x[r * COLUMNS + c] - most[r]; s += power(v < -8.0f ? -8.0f : v); }
    out[r] = s;
  }
}

//! wrong | precision | The series ends after the third power. Shows on every input.
void third_power(float *out, const float *x, const float *most) {
  for (int r = 0; r < ROWS; r++) {
    float s = 0.0f;
    for (int c = 0; c < COLUMNS; c++) {
      float v = (x[r * COLUMNS + c] - most[r]) / 64.0f, p = 1.0f + v * (1.0f + v * (0.5f + v * 0.16666667f));
      for (int n = 0; n < 6; n++) p *= p;
      s += p * 1.002f;
    }
    out[r] = s;
  }
}

//! wrong | negative | Not less than the size of each difference. Shows where x is above its most.
void of_sizes(float *out, const float *x, const float *most) {
  for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS; c++) s += power(-__builtin_fabsf(x[r * COLUMNS + c] - most[r])); out[r] = s; }
}
