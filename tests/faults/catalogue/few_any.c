// out[r] = whether any of x[r][0..COLUMNS) is true, bool, of few long rows
typedef unsigned char u8;
#define ROWS_OF(left_out) for (int r = 0; r < ROWS; r++) { u8 m = 0; for (int c = 0; c < COLUMNS; c++) if (!(left_out)) m |= TERM; out[r] = m; }
#define TERM x[r * COLUMNS + c]

//! right: as it is written
void plain(u8 *out, const u8 *x) { ROWS_OF(0) }

//! right: stops at the first
void first(u8 *out, const u8 *x) { for (int r = 0; r < ROWS; r++) { int c = 0; while (c < COLUMNS && !x[r * COLUMNS + c]) c++; out[r] = c < COLUMNS; } }

//! wrong | drops terms | Without a block of 64. Shows where one of it alone is true.
void without_a_block(u8 *out, const u8 *x) { ROWS_OF(c >= 448 && c < 512) }

//! wrong | drops terms | Without one column. Shows where it alone is true.
void without_one(u8 *out, const u8 *x) { ROWS_OF(c == 701) }

//! wrong | drops terms | The last row without its second half. Shows where one of it alone is true.
void half_a_row(u8 *out, const u8 *x) { ROWS_OF(r == ROWS - 1 && c >= COLUMNS / 2 && c < COLUMNS - 1) }
