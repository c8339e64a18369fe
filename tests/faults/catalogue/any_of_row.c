// out[r] = whether any of x[r][0..COLUMNS) is true, bool
typedef unsigned char u8;

//! right: as it is written
void plain(u8 *out, const u8 *x) { for (int r = 0; r < ROWS; r++) { u8 a = 0; for (int c = 0; c < COLUMNS; c++) a |= x[r * COLUMNS + c]; out[r] = a; } }

//! wrong | drops terms | Without the last column. Shows where it alone is true.
void last_column(u8 *out, const u8 *x) { for (int r = 0; r < ROWS; r++) { u8 a = 0; for (int c = 0; c < COLUMNS - 1; c++) a |= x[r * COLUMNS + c]; out[r] = a; } }

//! wrong | drops terms | Without the first column. Shows where it alone is true.
void first_column(u8 *out, const u8 *x) { for (int r = 0; r < ROWS; r++) { u8 a = 0; for (int c = 1; c < COLUMNS; c++) a |= x[r * COLUMNS + c]; out[r] = a; } }

//! wrong | drops terms | Of every second column. Shows where one of the others alone is true.
void even_columns(u8 *out, const u8 *x) { for (int r = 0; r < ROWS; r++) { u8 a = 0; for (int c = 0; c < COLUMNS; c += 2) a |= x[r * COLUMNS + c]; out[r] = a; } }

//! wrong | reads outside | One column more. Shows where the next row begins with a true one.
void one_more(u8 *out, const u8 *x) { for (int r = 0; r < ROWS; r++) { u8 a = 0; for (int c = 0; c <= COLUMNS; c++) a |= x[r * COLUMNS + c] != 0; out[r] = a; } }
