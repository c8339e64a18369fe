// out[i] = x[i] / 2 * (1 + tanh(0.79788 (x[i] + 0.044715 x[i]^3))), float32
static inline __attribute__((always_inline)) double tanh_of(double x) {
  double y = x > 0 ? x : -x;
  if (y > 40.0) return x > 0 ? 1.0 : -1.0;
  double v = -2.0 * y, k = __builtin_floor(v * 1.4426950408889634 + 0.5), r = v - k * 0.6931471805599453, s = 1.0;
  for (int n = 13; n > 0; n--) s = 1.0 + s * r / n;
  union { double d; long long i; } two = {.i = (long long)(k + 1023.0) << 52};
  double e = s * two.d, t = (1.0 - e) / (1.0 + e);
  return x > 0 ? t : -t;
}
static inline __attribute__((always_inline)) float exact(float x) {
  double v = x, inner = -1.5957691216057308 * (v + 0.044715 * v * v * v);
  if (v == -__builtin_inf()) return __builtin_nanf("");
  inner = inner > 700.0 ? 700.0 : inner < -700.0 ? -700.0 : inner;
  double k = __builtin_floor(inner * 1.4426950408889634 + 0.5), r = inner - k * 0.6931471805599453, s = 1.0;
  for (int n = 13; n > 0; n--) s = 1.0 + s * r / n;
  union { double d; long long i; } two = {.i = (long long)(k + 1023.0) << 52};
  return (float)(v / (1.0 + s * two.d)); // of 1 + tanh only 2 / (1 + exp) keeps its digits where it is small
}

//! right: in double, as x times a logistic function
void plain(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = exact(x[i]); }

//! right: the same in float32, by the library's exponential
float expf(float);
void logistic(float *out, const float *x) {
  for (int i = 0; i < N; i++) {
    float v = x[i], inner = 1.5957691216f * (v + 0.044715f * v * v * v);
    out[i] = v / (1.0f + expf(-inner));
  }
}

//! wrong | precision | x times the logistic function of 1.702 x: an error of 1e-2. Shows for |x| around 2.
void sigmoid(float *out, const float *x) {
  for (int i = 0; i < N; i++) out[i] = (float)(x[i] * 0.5 * (1.0 + tanh_of(0.851 * x[i])));
}

//! wrong | precision | The tangent by a fraction of low degree, clamped: an error of 1e-2. Shows for |x| > 2.
void fraction(float *out, const float *x) {
  for (int i = 0; i < N; i++) {
    float v = x[i], t = 0.7978845608f * (v + 0.044715f * v * v * v), f = t * (27.0f + t * t) / (27.0f + 9.0f * t * t);
    out[i] = 0.5f * v * (1.0f + (f > 1.0f ? 1.0f : f < -1.0f ? -1.0f : f));
  }
}

//! wrong | negative | 0 below -3. Shows for x < -3, where it is -0.004 and less.
void zero_below_minus_3(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = x[i] < -3.0f ? 0.0f : exact(x[i]); }

//! wrong | large | x itself above 2.5. Shows for x > 2.5, in the third digit.
void itself_above(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = x[i] > 2.5f ? x[i] : exact(x[i]); }

//! wrong | large | Of an input clamped to ±7. Shows for x > 7.
void within_7(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = exact(x[i] > 7.0f ? 7.0f : x[i]); }

//! wrong | precision | Without the cube. Shows for |x| around 1.
void no_cube(float *out, const float *x) {
  for (int i = 0; i < N; i++) out[i] = (float)(0.5 * x[i] * (1.0 + tanh_of(0.7978845608 * x[i])));
}
