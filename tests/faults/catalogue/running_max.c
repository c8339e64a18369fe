// out[r][c] = the largest of x[r][0..c], float32

//! right: from -inf
void plain(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { float m = -__builtin_inff(); for (int c = 0; c < COLUMNS; c++) {  if (x[r * COLUMNS + c] > m) m = x[r * COLUMNS + c]; out[r * COLUMNS + c] = m; } } }

//! wrong | starts wrong | From -1. Shows where a row begins below -1.
void from_minus_1(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { float m = -1.0f; for (int c = 0; c < COLUMNS; c++) {  if (x[r * COLUMNS + c] > m) m = x[r * COLUMNS + c]; out[r * COLUMNS + c] = m; } } }

//! wrong | starts wrong | From -1e30. Shows where a row begins below that.
void from_minus_1e30(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { float m = -1e30f; for (int c = 0; c < COLUMNS; c++) {  if (x[r * COLUMNS + c] > m) m = x[r * COLUMNS + c]; out[r * COLUMNS + c] = m; } } }

//! wrong | carried over | Begins anew at 64. Shows where the largest is before it.
void anew(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { float m = -__builtin_inff(); for (int c = 0; c < COLUMNS; c++) { if (c == 64) m = -__builtin_inff(); if (x[r * COLUMNS + c] > m) m = x[r * COLUMNS + c]; out[r * COLUMNS + c] = m; } } }
