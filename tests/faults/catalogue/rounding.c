// out[i] = round(x[i]), halves to even numbers, float32

//! right: the processor's
void plain(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = __builtin_rintf(x[i]); }

//! wrong | ties | Halves away from 0. Shows for 0.5 and 2.5.
void away(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = __builtin_fabsf(x[i]) < 1000.0f ? __builtin_roundf(x[i]) : __builtin_rintf(x[i]); }

//! wrong | ties | Halves upwards. Shows for 0.5, 2.5 and -1.5.
void upwards(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = __builtin_fabsf(x[i]) < 4194304.0f ? __builtin_floorf(x[i] + 0.5f) : x[i]; }

//! wrong | narrow | By a 32-bit integer. Shows for numbers beyond it.
void by_int(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = (float)(int)__builtin_rintf(x[i]); }
