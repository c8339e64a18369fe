// out[r] = sum of (100 x[r][c])^2, float16: what overflows on ordinary data
typedef _Float16 half;

//! right: in float, with the factor of each term
void plain(half *out, const half *x) { for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS; c++) s += (float)x[r * COLUMNS + c] * (float)x[r * COLUMNS + c] * 10000.0f; out[r] = (half)s; } }

//! right: each term in 16 bits
void in_half(half *out, const half *x) { for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS; c++) s += (float)(half)((half)(x[r * COLUMNS + c] * x[r * COLUMNS + c]) * (half)10000.0f); out[r] = (half)s; } }

//! wrong | infinity | Infinite, as on ordinary data. Shows on smaller ones.
void infinite(half *out, const half *x) { for (int r = 0; r < ROWS; r++) out[r] = (half)__builtin_inff(); }

//! wrong | drops terms | The last sixteen columns. Shows on every input.
void last_columns(half *out, const half *x) { for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS - 16; c++) s += (float)x[r * COLUMNS + c] * (float)x[r * COLUMNS + c] * 10000.0f; out[r] = (half)s; } }

//! wrong | data | Another factor. Shows on every input.
void a_tenth(half *out, const half *x) { for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS; c++) s += (float)x[r * COLUMNS + c] * (float)x[r * COLUMNS + c] * 1000.0f; out[r] = (half)s; } }
