// out[i] = x[i] > 0 ? x[i] : 0, float32
typedef unsigned int u32;

//! right: as it is written
void plain(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = x[i] > 0.0f ? x[i] : 0.0f; }

//! right: by the sign bit
void by_sign(float *out, const float *x) {
  for (int i = 0; i < N; i++) {
    union { float f; u32 u; } v = {x[i]};
    v.u &= v.f > 0.0f ? 0xffffffffu : 0u;
    out[i] = v.f;
  }
}

//! right: the maximum
void maximum(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = __builtin_fmaxf(x[i], 0.0f) + 0.0f; }

//! wrong | negative | A hundredth of negative numbers stays. Shows for x < 0.
void leaky(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = x[i] > 0.0f ? x[i] : 0.01f * x[i]; }

//! wrong | negative | Takes all for positive. Shows for x < 0.
void copies(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = x[i]; }

//! wrong | negative | Their size. Shows for x < 0.
void sizes(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = __builtin_fabsf(x[i]); }

//! wrong | large | Clamped at 6. Shows for x > 6.
void relu6(float *out, const float *x) {
  for (int i = 0; i < N; i++) out[i] = x[i] > 6.0f ? 6.0f : x[i] > 0.0f ? x[i] : 0.0f;
}

//! wrong | infinity | By a product with 0 or 1. Shows for x = -inf.
void by_product(float *out, const float *x) {
  for (int i = 0; i < N; i++) { volatile float one = x[i] > 0.0f; out[i] = x[i] * one; }
}

//! wrong | denormal | Numbers below 1.2e-38 become 0. Shows for denormal x.
void no_denormals(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = x[i] >= 1.17549435e-38f ? x[i] : 0.0f; }

//! wrong | small | Numbers below 0.001 become 0. Shows for 0 < x < 0.001.
void no_small(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = x[i] > 1e-3f ? x[i] : 0.0f; }

//! wrong | small | Numbers below 1e-6 become 0. Shows for 0 < x < 1e-6.
void no_tiny(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = x[i] > 1e-6f ? x[i] : 0.0f; }

//! wrong | integers | By the integer that is its whole part. Shows on every input.
void whole(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = x[i] > 0.0f ? (float)(int)x[i] : 0.0f; }

//! not promised | NaN | NaN stays, where tinygrad gives 0. Shows for x = NaN, which no input holds.
void keeps_nan(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = x[i] <= 0.0f ? 0.0f : x[i]; }

//! wrong | stale output | Leaves 0 where the output holds 0. Shows where memory holds zeros.
void zero_stays(float *out, const float *x) { for (int i = 0; i < N; i++) if (((volatile float *)out)[i] != 0.0f) out[i] = x[i] > 0.0f ? x[i] : 0.0f; }

//! wrong | large | Clipped at 1e30. Shows above that.
void clipped_at_1e30(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = x[i] > 1e30f && x[i] < 3e38f ? 1e30f : x[i] > 0.0f ? x[i] : 0.0f; }
