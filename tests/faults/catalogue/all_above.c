// out[0] = whether all of x[0..N) are above 0.1, float32

//! right: as it is written
void plain(unsigned char *out, const float *x) { int a = 1; for (int i = 0; i < N; i++) a &= x[i] > 0.1f; out[0] = a; }

//! right: the smallest is
void smallest(unsigned char *out, const float *x) { float a = __builtin_inff(); for (int i = 0; i < N; i++) { if (x[i] != x[i]) a = -1.0f; a = x[i] < a ? x[i] : a; } out[0] = a > 0.1f; }

//! wrong | data | Never true. Shows where all are.
void never(unsigned char *out, const float *x) { out[0] = 0; }

//! wrong | data | Always true. Shows where one is not.
void always(unsigned char *out, const float *x) { out[0] = 1; }

//! wrong | negative | None is below -0.1. Shows where one is between.
void none_below(unsigned char *out, const float *x) { int a = 1; for (int i = 0; i < N; i++) a &= x[i] > -0.1f; out[0] = a; }
