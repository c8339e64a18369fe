// out[r] = whether all of x[r][0..COLUMNS) are 0, int32

//! right: as it is written
void plain(unsigned char *out, const int *x) { for (int r = 0; r < ROWS; r++) { int a = 1; for (int c = 0; c < COLUMNS; c++) a &= x[r * COLUMNS + c] == 0; out[r] = a; } }

//! right: no bit of any
void bits(unsigned char *out, const int *x) { for (int r = 0; r < ROWS; r++) { int a = 0; for (int c = 0; c < COLUMNS; c++) a |= x[r * COLUMNS + c]; out[r] = a == 0; } }

//! right: until the first that is not, from the end
void early(unsigned char *out, const int *x) { for (int r = 0; r < ROWS; r++) { int a = 1; for (int c = COLUMNS - 1; c >= 0; c--) if (x[r * COLUMNS + c]) { a = 0; break; } out[r] = a; } }

//! wrong | data | Never true. Shows where a row is all 0.
void never(unsigned char *out, const int *x) { for (int r = 0; r < ROWS; r++) out[r] = 0; }

//! wrong | sign | Their sum is 0. Shows where numbers cancel.
void sum(unsigned char *out, const int *x) { for (int r = 0; r < ROWS; r++) { int a = 0; for (int c = 0; c < COLUMNS; c++) a += x[r * COLUMNS + c]; out[r] = a == 0; } }

//! wrong | drops terms | Without the first column. Shows where it alone is not 0.
void first_column(unsigned char *out, const int *x) { for (int r = 0; r < ROWS; r++) { int a = 0; for (int c = 1; c < COLUMNS; c++) a |= x[r * COLUMNS + c]; out[r] = a == 0; } }

//! wrong | negative | None is above 0. Shows where one is below.
void none_above(unsigned char *out, const int *x) { for (int r = 0; r < ROWS; r++) { int a = 1; for (int c = 0; c < COLUMNS; c++) a &= x[r * COLUMNS + c] <= 0; out[r] = a; } }
