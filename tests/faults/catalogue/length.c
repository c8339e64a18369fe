// out[r] = the root of the sum of x[r][0..COLUMNS)^2, at least 1e-12: float32, of few long rows
#define SQUARES float s = 0.0f; for (int c = 0; c < COLUMNS; c++) s += x[r * COLUMNS + c] * x[r * COLUMNS + c];

//! right: as it is written
void plain(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { SQUARES float l = __builtin_sqrtf(s); out[r] = l > 1e-12f ? l : 1e-12f; } }

//! wrong | zeros | Without the floor. Shows where a whole row is 0.
void no_floor(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { SQUARES out[r] = __builtin_sqrtf(s); } }

//! wrong | zeros | A floor of 1e-6. Shows where a whole row is nearly 0.
void high_floor(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { SQUARES float l = __builtin_sqrtf(s); out[r] = l > 1e-6f ? l : 1e-6f; } }

//! wrong | zeros | 1e-12 added and no floor. Shows on no row but one of zeros, where the root is 1e-6.
void added(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { SQUARES out[r] = __builtin_sqrtf(s + 1e-12f); } }
