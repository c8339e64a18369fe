// out[i] = 1 / x[i], float32: of 0 inf, of -0 -inf

//! right: as it is written
void plain(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = 1.0f / x[i]; }

//! wrong | zeros | inf of both zeros. Shows where one is -0.
void of_minus_0(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = x[i] == 0.0f ? __builtin_inff() : 1.0f / x[i]; }

//! wrong | zeros | 0 of 0. Shows where one is 0.
void guarded(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = x[i] == 0.0f ? 0.0f : 1.0f / x[i]; }

//! wrong | large | 0 from 1e25 on. Shows where one is as large.
void large(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = __builtin_fabsf(x[i]) > 1e25f && __builtin_fabsf(x[i]) < 1e30f ? 0.0f : 1.0f / x[i]; }
