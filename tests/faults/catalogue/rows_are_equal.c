// out[r] = whether x[r][c] == y[r][c] for all c, float32

//! right: as it is written
void plain(unsigned char *out, const float *x, const float *y) { for (int r = 0; r < ROWS; r++) { int a = 1; for (int c = 0; c < COLUMNS; c++) a &= x[r * COLUMNS + c] == y[r * COLUMNS + c]; out[r] = a; } }

//! right: no difference
void differences(unsigned char *out, const float *x, const float *y) { for (int r = 0; r < ROWS; r++) { int a = 0; for (int c = 0; c < COLUMNS; c++) a += x[r * COLUMNS + c] != y[r * COLUMNS + c]; out[r] = a == 0; } }

//! wrong | data | Never true. Shows where two rows are equal.
void never(unsigned char *out, const float *x, const float *y) { for (int r = 0; r < ROWS; r++) out[r] = 0; }

//! wrong | precision | Within 0.75. Shows where two are that close.
void close(unsigned char *out, const float *x, const float *y) { for (int r = 0; r < ROWS; r++) { int a = 1; for (int c = 0; c < COLUMNS; c++) a &= __builtin_fabsf(x[r * COLUMNS + c] - y[r * COLUMNS + c]) <= 0.75f; out[r] = a; } }

//! wrong | drops terms | Without the last column. Shows where it alone differs.
void last_column(unsigned char *out, const float *x, const float *y) { for (int r = 0; r < ROWS; r++) { int a = 1; for (int c = 0; c < COLUMNS - 1; c++) a &= x[r * COLUMNS + c] == y[r * COLUMNS + c]; out[r] = a; } }
