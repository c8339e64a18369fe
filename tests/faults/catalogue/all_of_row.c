// out[r] = whether all of x[r][0..COLUMNS) are true, bool
typedef unsigned char u8;

//! right: as it is written
void plain(u8 *out, const u8 *x) { for (int r = 0; r < ROWS; r++) { u8 a = 1; for (int c = 0; c < COLUMNS; c++) a &= x[r * COLUMNS + c]; out[r] = a; } }

//! wrong | drops terms | Without the last column. Shows where it alone is false.
void last_column(u8 *out, const u8 *x) { for (int r = 0; r < ROWS; r++) { u8 a = 1; for (int c = 0; c < COLUMNS - 1; c++) a &= x[r * COLUMNS + c]; out[r] = a; } }

//! wrong | drops terms | Without the first column. Shows where it alone is false.
void first_column(u8 *out, const u8 *x) { for (int r = 0; r < ROWS; r++) { u8 a = 1; for (int c = 1; c < COLUMNS; c++) a &= x[r * COLUMNS + c]; out[r] = a; } }

//! wrong | drops terms | Of every second column. Shows where one of the others alone is false.
void even_columns(u8 *out, const u8 *x) { for (int r = 0; r < ROWS; r++) { u8 a = 1; for (int c = 0; c < COLUMNS; c += 2) a &= x[r * COLUMNS + c]; out[r] = a; } }
