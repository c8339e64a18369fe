// out[r] = the smallest of x[r][0..COLUMNS), float32, of three long rows

//! right: from the first element on
void plain(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { float m = x[r * COLUMNS]; for (int c = 1; c < COLUMNS; c++) if (x[r * COLUMNS + c] < m) m = x[r * COLUMNS + c]; out[r] = m; } }

//! wrong | drops terms | Without the last column. Shows where the smallest is there.
void last_column(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { float m = x[r * COLUMNS]; for (int c = 1; c < COLUMNS - 1; c++) if (x[r * COLUMNS + c] < m) m = x[r * COLUMNS + c]; out[r] = m; } }

//! wrong | drops terms | Without the first column. Shows where the smallest is there.
void first_column(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { float m = x[r * COLUMNS + 1]; for (int c = 2; c < COLUMNS; c++) if (x[r * COLUMNS + c] < m) m = x[r * COLUMNS + c]; out[r] = m; } }

//! wrong | drops terms | Whole blocks of 64 only. Shows where the smallest is behind them.
void blocks(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { float m = x[r * COLUMNS]; for (int c = 1; c < COLUMNS / 64 * 64; c++) if (x[r * COLUMNS + c] < m) m = x[r * COLUMNS + c]; out[r] = m; } }

//! right: from inf
void from_inf(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { float m = __builtin_inff(); for (int c = 0; c < COLUMNS; c++) if (x[r * COLUMNS + c] < m) m = x[r * COLUMNS + c]; out[r] = m; } }

//! wrong | starts wrong | From 1. Shows where all are above 1.
void from_1(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { float m = 1.0f; for (int c = 0; c < COLUMNS; c++) if (x[r * COLUMNS + c] < m) m = x[r * COLUMNS + c]; out[r] = m; } }

//! wrong | starts wrong | From 1e30. Shows where all are above that.
void from_1e30(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { float m = 1e30f; for (int c = 0; c < COLUMNS; c++) if (x[r * COLUMNS + c] < m) m = x[r * COLUMNS + c]; out[r] = m; } }

//! wrong | drops terms | Without one column. Shows where the smallest is there.
void without_one(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { float m = x[r * COLUMNS]; for (int c = 1; c < COLUMNS; c++) if (c != 431 && x[r * COLUMNS + c] < m) m = x[r * COLUMNS + c]; out[r] = m; } }
