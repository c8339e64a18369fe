// out[i] = keep[i] and x[i] > 0.5, bool of bool and float32
typedef unsigned char u8;

//! right: as it is written
void plain(u8 *out, const u8 *keep, const float *x) { for (int i = 0; i < N; i++) out[i] = keep[i] && x[i] > 0.5f; }

//! right: without branches
void bits(u8 *out, const u8 *keep, const float *x) { for (int i = 0; i < N; i++) out[i] = keep[i] & (u8)(x[i] > 0.5f); }

//! wrong | mask | One or the other. Shows where they differ.
void either(u8 *out, const u8 *keep, const float *x) { for (int i = 0; i < N; i++) out[i] = keep[i] || x[i] > 0.5f; }

//! wrong | mask | All are kept. Shows where some are not.
void all_kept(u8 *out, const u8 *keep, const float *x) { for (int i = 0; i < N; i++) out[i] = x[i] > 0.5f; }

//! wrong | mask | The mask of its block of eight. Shows where a block is mixed.
void of_block(u8 *out, const u8 *keep, const float *x) { for (int i = 0; i < N; i++) out[i] = keep[i & ~7] && x[i] > 0.5f; }

//! wrong | negative | Compares sizes. Shows for x < -0.5.
void sizes(u8 *out, const u8 *keep, const float *x) { for (int i = 0; i < N; i++) out[i] = keep[i] && __builtin_fabsf(x[i]) > 0.5f; }

//! wrong | large | What is above 4 is left out. Shows for x > 4.
void below_4(u8 *out, const u8 *keep, const float *x) { for (int i = 0; i < N; i++) out[i] = keep[i] && x[i] > 0.5f && x[i] <= 4.0f; }

//! wrong | skips | Where nothing is kept, nothing is written. Shows where the buffer holds something.
void kept_only(u8 *out, const u8 *keep, const float *x) { for (int i = 0; i < N; i++) if (keep[i]) out[i] = x[i] > 0.5f; }
