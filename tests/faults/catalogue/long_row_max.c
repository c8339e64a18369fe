// out[0] = the largest of x[0..COLUMNS), float32, of one row of many thousands
#define ROWS_OF(type, start, left_out, wins) \
  for (int r = 0; r < ROWS; r++) { \
    type m = start; \
    for (int c = 0; c < COLUMNS; c++) if (!(left_out) && x[r * COLUMNS + c] wins m) m = x[r * COLUMNS + c]; \
    out[r] = m; \
  }

//! right: from -inf
void plain(float *out, const float *x) { ROWS_OF(float, -__builtin_inff(), 0, >) }

//! wrong | starts wrong | From -100. Shows where all are below -100.
void from_minus_100(float *out, const float *x) { ROWS_OF(float, -100.0f, 0, >) }

//! wrong | drops terms | Without a block of 64. Shows where the largest is there.
void without_a_block(float *out, const float *x) { ROWS_OF(float, -__builtin_inff(), c >= 9920 && c < 9984, >) }

//! wrong | drops terms | Without what is behind the last block of 128. Shows where the largest is there, but for the last.
void without_the_tail(float *out, const float *x) { ROWS_OF(float, -__builtin_inff(), c >= COLUMNS / 128 * 128 && c < COLUMNS - 1, >) }

//! wrong | drops terms | Without the first of each block of 512. Shows where the largest is there.
void first_of_blocks(float *out, const float *x) { ROWS_OF(float, -__builtin_inff(), c && c % 512 == 0, >) }
