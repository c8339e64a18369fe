// out[c] = whether any of x[0..ROWS)[c] is true, bool: columns so long that one of half-true numbers always is
typedef unsigned char u8;

//! right: as it is written
void plain(u8 *out, const u8 *x) { for (int c = 0; c < COLUMNS; c++) { u8 a = 0; for (int r = 0; r < ROWS; r++) a |= x[r * COLUMNS + c]; out[c] = a; } }

//! right: row by row
void by_rows(u8 *out, const u8 *x) { for (int c = 0; c < COLUMNS; c++) out[c] = 0; for (int r = 0; r < ROWS; r++) for (int c = 0; c < COLUMNS; c++) out[c] |= x[r * COLUMNS + c]; }

//! wrong | data | Always true, as on most data. Shows where all of a column are false.
void always(u8 *out, const u8 *x) { for (int c = 0; c < COLUMNS; c++) out[c] = 1; }

//! wrong | drops terms | Without the last row. Shows where it alone is true.
void last_row(u8 *out, const u8 *x) { for (int c = 0; c < COLUMNS; c++) { u8 a = 0; for (int r = 0; r < ROWS - 1; r++) a |= x[r * COLUMNS + c]; out[c] = a; } }

//! wrong | index | The next column. Shows where they differ.
void next(u8 *out, const u8 *x) { for (int c = 0; c < COLUMNS; c++) { u8 a = 0; for (int r = 0; r < ROWS; r++) a |= x[r * COLUMNS + (c + 1) % COLUMNS]; out[c] = a; } }
