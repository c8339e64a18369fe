// out[i] = exp(x[i]), float32

// of a double between -750 and 750: 2^k times a series of r, |r| <= 0.35, to 1e-11
static inline __attribute__((always_inline)) double series(double x) {
  double k = __builtin_floor(x * 1.4426950408889634 + 0.5), r = x - k * 0.6931471805599453, s = 1.0;
  for (int n = 11; n > 0; n--) s = 1.0 + s * r / n;
  union { double d; long long i; } two = {.i = (long long)(k + 1023.0) << 52};
  return s * two.d;
}
static inline __attribute__((always_inline)) double within(double x, double low, double high) {
  return x < low ? low : x > high ? high : x;
}
static inline __attribute__((always_inline)) float exact(float x) {
  return x != x ? x : (float)series(within(x, -700.0, 700.0));
}

//! right: a series in double
void plain(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = exact(x[i]); }

//! right: the mathematics library's
float expf(float);
void library(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = expf(x[i]); }

//! right: a power of two, as tinygrad has it, whose product is rounded to float32 first
void by_powers(float *out, const float *x) {
  for (int i = 0; i < N; i++) {
    volatile float y = x[i] * 1.44269504f;
    out[i] = y != y ? y : (float)series(within(y * 0.6931471805599453, -700.0, 700.0));
  }
}

//! right: fast and accurate: a polynomial of float32 with fused steps, to 2e-7
void fast(float *out, const float *x) {
  for (int i = 0; i < N; i++) {
    float v = x[i] > 89.0f ? 89.0f : x[i] < -104.0f ? -104.0f : x[i];
    float k = __builtin_floorf(v * 1.44269504f + 0.5f);
    float r = __builtin_fmaf(k, -0.693359375f, v);
    r = __builtin_fmaf(k, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = __builtin_fmaf(p, r, 1.3981999507e-3f);
    p = __builtin_fmaf(p, r, 8.3334519073e-3f);
    p = __builtin_fmaf(p, r, 4.1665795894e-2f);
    p = __builtin_fmaf(p, r, 1.6666665459e-1f);
    p = __builtin_fmaf(p, r, 5.0000001201e-1f);
    p = __builtin_fmaf(p, r * r, r) + 1.0f;
    union { double d; long long i; } two = {.i = (long long)(k + 1023.0f) << 52};
    out[i] = x[i] != x[i] ? x[i] : (float)(p * two.d);
  }
}

//! wrong | precision | A polynomial of third degree: an error of 1e-3. Shows on every input.
void third_degree(float *out, const float *x) {
  for (int i = 0; i < N; i++) {
    double v = within(x[i], -700.0, 700.0), k = __builtin_floor(v * 1.4426950408889634 + 0.5), r = v - k * 0.6931471805599453;
    union { double d; long long i; } two = {.i = (long long)(k + 1023.0) << 52};
    out[i] = (float)((1.0 + r * (1.0 + r * (0.5 + r / 6.0))) * two.d);
  }
}

//! wrong | precision | An exponent made of the bits of a number: an error of 3 %. Shows on every input.
void bits(float *out, const float *x) {
  for (int i = 0; i < N; i++) {
    union { int i; float f; } v = {.i = (int)(12102203.0f * within(x[i], -80.0, 80.0) + 1064866805.0f)};
    out[i] = v.f;
  }
}

//! wrong | precision | The limit of (1 + x / 1024) to the 1024th. Shows in the third digit, and for x < -1024.
void limit(float *out, const float *x) {
  for (int i = 0; i < N; i++) {
    float v = 1.0f + x[i] / 1024.0f;
    for (int n = 0; n < 10; n++) v *= v;
    out[i] = v;
  }
}

//! wrong | large | A series around 0 without a change of range: right for |x| < 4. Shows for larger ones.
void around_zero(float *out, const float *x) {
  for (int i = 0; i < N; i++) {
    double s = 1.0;
    for (int n = 24; n > 0; n--) s = 1.0 + s * x[i] / n;
    out[i] = (float)s;
  }
}

//! wrong | large | Clamped to ±10. Shows for |x| > 10.
void within_10(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = exact((float)within(x[i], -10.0, 10.0)); }

//! wrong | large | Clamped at 88: never infinite. Shows for x > 88.
void below_88(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = exact(x[i] > 88.0f ? 88.0f : x[i]); }

//! wrong | large | Infinite from 80 on. Shows for 80 < x < 88.7.
void early_infinity(float *out, const float *x) {
  for (int i = 0; i < N; i++) out[i] = x[i] > 80.0f ? __builtin_inff() : exact(x[i]);
}

//! wrong | negative | Clamped at -20. Shows for x < -20.
void above_minus_20(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = exact(x[i] < -20.0f ? -20.0f : x[i]); }

//! wrong | negative | 0 from -16 on. Shows for x < -16, where it is 1e-7 and less.
void early_zero(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = x[i] < -16.0f ? 0.0f : exact(x[i]); }

//! wrong | negative | Of the size of x. Shows for x < 0.
void sizes(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = exact(__builtin_fabsf(x[i])); }

//! wrong | infinity | NaN for infinities: the change of range takes inf from inf. Shows for x = ±inf.
void infinity_is_nan(float *out, const float *x) {
  for (int i = 0; i < N; i++) { volatile float v = x[i]; out[i] = exact(x[i]) + (v - v); }
}

//! wrong | infinity | NaN for -inf only: 0 times infinity. Shows for x = -inf, as masks have it.
void masked_is_nan(float *out, const float *x) {
  for (int i = 0; i < N; i++) { volatile float e = exact(x[i]), v = x[i] < 0.0f ? x[i] : 0.0f; out[i] = e + 0.0f * v * e; }
}

//! wrong | off by one | The last element is that of x - 1. Shows on every input.
void last_shifted(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = exact(i < N - 1 ? x[i] : x[i] - 1.0f); }
