// out[r] = the largest of x[r][0..COLUMNS), float16, of few rows
typedef _Float16 half;
#define ROWS_OF(type, start, left_out, wins) \
  for (int r = 0; r < ROWS; r++) { \
    type m = start; \
    for (int c = 0; c < COLUMNS; c++) if (!(left_out) && x[r * COLUMNS + c] wins m) m = x[r * COLUMNS + c]; \
    out[r] = m; \
  }

//! right: from -inf
void plain(half *out, const half *x) { ROWS_OF(half, (half)-__builtin_inff(), 0, >) }

//! right: in float32, from -inf
void in_float(half *out, const half *x) { for (int r = 0; r < ROWS; r++) { float m = -__builtin_inff(); for (int c = 0; c < COLUMNS; c++) m = (float)x[r * COLUMNS + c] > m ? (float)x[r * COLUMNS + c] : m; out[r] = (half)m; } }

//! wrong | starts wrong | From -1. Shows where all are below -1.
void from_minus_1(half *out, const half *x) { ROWS_OF(half, (half)-1.0f, 0, >) }

//! wrong | starts wrong | From -1e4. Shows where all are below that.
void from_minus_1e4(half *out, const half *x) { ROWS_OF(half, (half)-1e4f, 0, >) }

//! wrong | drops terms | Without a block of 32. Shows where the largest is there.
void without_a_block(half *out, const half *x) { ROWS_OF(half, (half)-__builtin_inff(), c >= 96 && c < 128, >) }
