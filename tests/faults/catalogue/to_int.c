// out[i] = the whole part of x[i], int32 of float32

//! right: as it is written
void plain(int *out, const float *x) { for (int i = 0; i < N; i++) out[i] = (int)x[i]; }

//! wrong | negative | Rounded down. Shows for negative numbers that are not whole.
void floor(int *out, const float *x) { for (int i = 0; i < N; i++) out[i] = (int)__builtin_floorf(x[i]); }

//! wrong | integers | Rounded to the nearest. Shows on every input.
void nearest(int *out, const float *x) { for (int i = 0; i < N; i++) out[i] = (int)__builtin_floorf(x[i] + 0.5f); }

//! wrong | narrow | Of 8 bits. Shows beyond ±128.
void in_8_bits(int *out, const float *x) { for (int i = 0; i < N; i++) out[i] = (signed char)(int)x[i]; }

//! wrong | negative | Never below 0. Shows for x <= -1.
void never_negative(int *out, const float *x) { for (int i = 0; i < N; i++) out[i] = x[i] < 0.0f ? 0 : (int)x[i]; }
