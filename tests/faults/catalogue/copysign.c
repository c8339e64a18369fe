// out[i] = the size of x[i] with the sign of sign[i], also of -0: float32

//! right: as it is written
void plain(float *out, const float *sign, const float *x) { for (int i = 0; i < N; i++) out[i] = __builtin_copysignf(x[i], sign[i]); }

//! wrong | zeros | The sign by a comparison. Shows where it is that of -0.
void compared(float *out, const float *sign, const float *x) { for (int i = 0; i < N; i++) out[i] = sign[i] < 0.0f ? -__builtin_fabsf(x[i]) : __builtin_fabsf(x[i]); }

//! wrong | zeros | 0 is negative. Shows where a sign is that of +0.
void not_above(float *out, const float *sign, const float *x) { for (int i = 0; i < N; i++) out[i] = sign[i] > 0.0f ? __builtin_fabsf(x[i]) : -__builtin_fabsf(x[i]); }

//! wrong | sign | The size keeps its sign where the other is above 0. Shows where both signs meet.
void kept(float *out, const float *sign, const float *x) { for (int i = 0; i < N; i++) out[i] = sign[i] < 0.0f || 1.0f / sign[i] < 0.0f ? -__builtin_fabsf(x[i]) : x[i]; }
