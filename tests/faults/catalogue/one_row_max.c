// out[0] = the largest of x[0..COLUMNS), float32, of one row
#define ROWS_OF(type, start, left_out, wins) \
  for (int r = 0; r < ROWS; r++) { \
    type m = start; \
    for (int c = 0; c < COLUMNS; c++) if (!(left_out) && x[r * COLUMNS + c] wins m) m = x[r * COLUMNS + c]; \
    out[r] = m; \
  }

//! right: from -inf
void plain(float *out, const float *x) { ROWS_OF(float, -__builtin_inff(), 0, >) }

//! right: from the first element
void first(float *out, const float *x) { ROWS_OF(float, x[r * COLUMNS], 0, >) }

//! right: from -inf, in blocks of 64 and a tail
void blocks(float *out, const float *x) {
  float m[64], most = -__builtin_inff();
  for (int k = 0; k < 64; k++) m[k] = -__builtin_inff();
  for (int c = 0; c < COLUMNS / 64 * 64; c++) m[c % 64] = x[c] > m[c % 64] ? x[c] : m[c % 64];
  for (int c = COLUMNS / 64 * 64; c < COLUMNS; c++) most = x[c] > most ? x[c] : most;
  for (int k = 0; k < 64; k++) most = m[k] > most ? m[k] : most;
  out[0] = most;
}

//! wrong | starts wrong | From -1. Shows where all are below -1.
void from_minus_1(float *out, const float *x) { ROWS_OF(float, -1.0f, 0, >) }

//! wrong | starts wrong | From -10. Shows where all are below -10.
void from_minus_10(float *out, const float *x) { ROWS_OF(float, -10.0f, 0, >) }

//! wrong | starts wrong | From -1e4. Shows where all are below that.
void from_minus_1e4(float *out, const float *x) { ROWS_OF(float, -1e4f, 0, >) }

//! wrong | starts wrong | From -1e30. Shows where all are below that.
void from_minus_1e30(float *out, const float *x) { ROWS_OF(float, -1e30f, 0, >) }

//! wrong | starts wrong | From the lowest finite number. Shows where all are -inf.
void from_the_lowest(float *out, const float *x) { ROWS_OF(float, -3.4028234663852886e38f, 0, >) }

//! wrong | drops terms | Without a block of 64. Shows where the largest is there.
void without_a_block(float *out, const float *x) { ROWS_OF(float, -__builtin_inff(), c >= 320 && c < 384, >) }

//! wrong | drops terms | Without one column. Shows where the largest is there.
void without_one(float *out, const float *x) { ROWS_OF(float, -__builtin_inff(), c == 617, >) }

//! wrong | drops terms | Without the last column of the last whole block of 32. Shows where the largest is there.
void before_the_tail(float *out, const float *x) { ROWS_OF(float, -__builtin_inff(), c == COLUMNS / 32 * 32 - 1, >) }
