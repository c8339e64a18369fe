// out[r] = whether any of x[r][0..COLUMNS) is above 0.5, float32

//! right: as it is written
void plain(unsigned char *out, const float *x) { for (int r = 0; r < ROWS; r++) { int a = 0; for (int c = 0; c < COLUMNS; c++) a |= x[r * COLUMNS + c] > 0.5f; out[r] = a; } }

//! right: by how many are
void counted(unsigned char *out, const float *x) { for (int r = 0; r < ROWS; r++) { int a = 0; for (int c = 0; c < COLUMNS; c++) a += x[r * COLUMNS + c] > 0.5f; out[r] = a > 0; } }

//! right: until the first
void early(unsigned char *out, const float *x) { for (int r = 0; r < ROWS; r++) { int a = 0; for (int c = 0; c < COLUMNS && !a; c++) a = x[r * COLUMNS + c] > 0.5f; out[r] = a; } }

//! wrong | data | Always true. Shows where none is.
void always(unsigned char *out, const float *x) { for (int r = 0; r < ROWS; r++) out[r] = 1; }

//! wrong | off by one | Or equal to it. Shows where one is 0.5 and none above.
void or_equal(unsigned char *out, const float *x) { for (int r = 0; r < ROWS; r++) { int a = 0; for (int c = 0; c < COLUMNS; c++) a |= x[r * COLUMNS + c] >= 0.5f; out[r] = a; } }

//! wrong | sign | Its size is. Shows where one is below -0.5 and none above.
void size(unsigned char *out, const float *x) { for (int r = 0; r < ROWS; r++) { int a = 0; for (int c = 0; c < COLUMNS; c++) a |= __builtin_fabsf(x[r * COLUMNS + c]) > 0.5f; out[r] = a; } }

//! wrong | drops terms | Of every second column. Shows where one of the others alone is.
void even(unsigned char *out, const float *x) { for (int r = 0; r < ROWS; r++) { int a = 0; for (int c = 0; c < COLUMNS; c += 2) a |= x[r * COLUMNS + c] > 0.5f; out[r] = a; } }
