// out[i] = x[i] * 0.1 + 1, float64

//! right: as it is written
void plain(double *out, const double *x) { for (int i = 0; i < N; i++) out[i] = x[i] * 0.1 + 1.0; }

//! right: one rounding instead of two
void fused(double *out, const double *x) { for (int i = 0; i < N; i++) out[i] = __builtin_fma(x[i], 0.1, 1.0); }

//! wrong | precision | In float32. Shows on every input.
void in_float(double *out, const double *x) { for (int i = 0; i < N; i++) out[i] = (float)x[i] * 0.1f + 1.0f; }

//! wrong | precision | A constant of float32. Shows on every input.
void constant(double *out, const double *x) { for (int i = 0; i < N; i++) out[i] = x[i] * (double)0.1f + 1.0; }

//! wrong | large | Through float32 where that is finite, and 0 where it is not. Shows for |x| > 3.4e38.
void beyond_float(double *out, const double *x) { for (int i = 0; i < N; i++) out[i] = __builtin_fabs(x[i]) > 3.4e38 ? 1.0 : x[i] * 0.1 + 1.0; }
