// out[r] = the largest of x[r][0..COLUMNS), float32

//! right: from the first element on
void plain(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) { float m = x[r * COLUMNS]; for (int c = 1; c < COLUMNS; c++) if (x[r * COLUMNS + c] > m) m = x[r * COLUMNS + c]; out[r] = m; }
}

//! right: from -inf, eight at once
void eight(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) {
    float m[8], most = -__builtin_inff();
    for (int k = 0; k < 8; k++) m[k] = -__builtin_inff();
    for (int c = 0; c < COLUMNS; c++) m[c & 7] = x[r * COLUMNS + c] > m[c & 7] ? x[r * COLUMNS + c] : m[c & 7];
    for (int k = 0; k < 8; k++) most = m[k] > most ? m[k] : most;
    out[r] = most;
  }
}

//! wrong | negative | Starts from 0. Shows where a whole row is negative.
void from_zero(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) { float m = 0.0f; for (int c = 0; c < COLUMNS; c++) if (x[r * COLUMNS + c] > m) m = x[r * COLUMNS + c]; out[r] = m; }
}

//! wrong | negative | Starts from the least positive number. Shows where a whole row is negative.
void from_least_positive(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) { float m = 1.17549435e-38f; for (int c = 0; c < COLUMNS; c++) if (x[r * COLUMNS + c] > m) m = x[r * COLUMNS + c]; out[r] = m; }
}

//! wrong | negative | Of the sizes, with the sign of the first. Shows in most rows.
void of_sizes(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) { float m = x[r * COLUMNS]; for (int c = 1; c < COLUMNS; c++) if (__builtin_fabsf(x[r * COLUMNS + c]) > __builtin_fabsf(m)) m = x[r * COLUMNS + c]; out[r] = m; }
}

//! wrong | drops terms | Without the last column. Shows where the largest is there.
void last_column(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) { float m = x[r * COLUMNS]; for (int c = 1; c < COLUMNS - 1; c++) if (x[r * COLUMNS + c] > m) m = x[r * COLUMNS + c]; out[r] = m; }
}

//! wrong | drops terms | Without the first column. Shows where the largest is there.
void first_column(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) { float m = -__builtin_inff(); for (int c = 1; c < COLUMNS; c++) if (x[r * COLUMNS + c] > m) m = x[r * COLUMNS + c]; out[r] = m; }
}

//! wrong | large | At most 6. Shows where a row reaches further.
void at_most_6(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) { float m = x[r * COLUMNS]; for (int c = 1; c < COLUMNS; c++) if (x[r * COLUMNS + c] > m) m = x[r * COLUMNS + c]; out[r] = m > 6.0f ? 6.0f : m; }
}

//! wrong | infinity | The largest finite one. Shows for x = inf.
void finite_only(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) { float m = -__builtin_inff(); for (int c = 0; c < COLUMNS; c++) if (x[r * COLUMNS + c] > m && x[r * COLUMNS + c] < __builtin_inff()) m = x[r * COLUMNS + c]; out[r] = m; }
}

//! wrong | carried over | Goes on from the row before. Shows where a row is below it.
void carried(float *out, const float *x) {
  float m = -__builtin_inff();
  for (int r = 0; r < ROWS; r++) { for (int c = 0; c < COLUMNS; c++) if (x[r * COLUMNS + c] > m) m = x[r * COLUMNS + c]; out[r] = m; }
}

//! wrong | reads outside | Eight elements more in the last row. Shows where a larger number is behind the input.
void past_the_end(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) {
    float m = x[r * COLUMNS];
    for (int c = 1; c < COLUMNS + (r == ROWS - 1 ? 8 : 0); c++) if (!(x[r * COLUMNS + c] <= m)) m = x[r * COLUMNS + c];
    out[r] = m;
  }
}

//! wrong | starts wrong | From -1e30. Shows where a whole row is below that.
void from_minus_1e30(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { float m = -1e30f; for (int c = 0; c < COLUMNS; c++) if (x[r * COLUMNS + c] > m) m = x[r * COLUMNS + c]; out[r] = m; } }
