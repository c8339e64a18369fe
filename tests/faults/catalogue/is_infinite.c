// out[i] = whether x[i] is infinite, bool of float32
typedef unsigned char u8;

//! right: as it is written
void plain(u8 *out, const float *x) { for (int i = 0; i < N; i++) out[i] = __builtin_fabsf(x[i]) == __builtin_inff(); }

//! wrong | infinity | Never. Shows for infinite numbers.
void never(u8 *out, const float *x) { for (int i = 0; i < N; i++) out[i] = 0; }

//! wrong | negative | Of positive ones only. Shows for x = -inf.
void positive(u8 *out, const float *x) { for (int i = 0; i < N; i++) out[i] = x[i] == __builtin_inff(); }

//! wrong | large | Beyond 1e30. Shows for finite numbers that are larger.
void large(u8 *out, const float *x) { for (int i = 0; i < N; i++) out[i] = __builtin_fabsf(x[i]) > 1e30f; }
