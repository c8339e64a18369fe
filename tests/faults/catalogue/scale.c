// out[r] = the largest size in x[r][0..COLUMNS) by 127, 1 where all are 0: float32, as for 8-bit numbers
#define LARGEST float m = 0.0f; for (int c = 0; c < COLUMNS; c++) { float v = __builtin_fabsf(x[r * COLUMNS + c]); m = v > m ? v : m; }

//! right: as it is written
void plain(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { LARGEST out[r] = m == 0.0f ? 1.0f : m / 127.0f; } }

//! right: the guard before the quotient
void before(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { LARGEST if (m == 0.0f) m = 127.0f; out[r] = m / 127.0f; } }

//! wrong | zeros | Without the guard. Shows where a whole row is 0.
void no_guard(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { LARGEST out[r] = m / 127.0f; } }

//! wrong | zeros | A floor of 1e-12 for a guard. Shows where a whole row is 0.
void floor(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { LARGEST out[r] = (m > 1e-12f ? m : 1e-12f) / 127.0f; } }

//! wrong | drops terms | Without the middle column. Shows where the largest is there.
void without_the_middle(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { float m = 0.0f; for (int c = 0; c < COLUMNS; c++) { float v = c == COLUMNS / 2 ? 0.0f : __builtin_fabsf(x[r * COLUMNS + c]); m = v > m ? v : m; } out[r] = m == 0.0f ? 1.0f : m / 127.0f; } }
