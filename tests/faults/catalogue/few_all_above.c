// out[r] = whether all of x[r][0..COLUMNS) are above -9, bool of float32, of few long rows
typedef unsigned char u8;
#define ROWS_OF(left_out) for (int r = 0; r < ROWS; r++) { u8 m = 1; for (int c = 0; c < COLUMNS; c++) if (!(left_out)) m &= TERM; out[r] = m; }
#define TERM (x[r * COLUMNS + c] > -9.0f)

//! right: as it is written
void plain(u8 *out, const float *x) { ROWS_OF(0) }

//! wrong | drops terms | Without a block of 64. Shows where one of it alone is not.
void without_a_block(u8 *out, const float *x) { ROWS_OF(c >= 192 && c < 256) }

//! wrong | drops terms | Without one column. Shows where it alone is not.
void without_one(u8 *out, const float *x) { ROWS_OF(c == 333) }

//! wrong | drops terms | Of the first 100 columns. Shows where one of the others alone is not.
void first_100(u8 *out, const float *x) { ROWS_OF(c >= 100) }
