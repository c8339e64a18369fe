// the place of the largest: out[r] = the least c with x[r][c] == most[r], COLUMNS where there is none; int32 of float32

//! right: from the left
void plain(int *out, const float *x, const float *most) {
  for (int r = 0; r < ROWS; r++) { int at = COLUMNS; for (int c = COLUMNS - 1; c >= 0; c--) if (x[r * COLUMNS + c] == most[r]) at = c; out[r] = at; }
}

//! right: stops at the first
void first(int *out, const float *x, const float *most) {
  for (int r = 0; r < ROWS; r++) { int c = 0; while (c < COLUMNS && x[r * COLUMNS + c] != most[r]) c++; out[r] = c; }
}

//! wrong | ties | The last of equal ones. Shows where two are equal.
void last(int *out, const float *x, const float *most) {
  for (int r = 0; r < ROWS; r++) { int at = COLUMNS; for (int c = 0; c < COLUMNS; c++) if (x[r * COLUMNS + c] == most[r]) at = c; out[r] = at; }
}

//! wrong | ties | Takes what is within a tenth for equal. Shows where an earlier one nearly reaches the largest.
void nearly_equal(int *out, const float *x, const float *most) {
  for (int r = 0; r < ROWS; r++) { int at = COLUMNS; for (int c = COLUMNS - 1; c >= 0; c--) if (__builtin_fabsf(x[r * COLUMNS + c] - most[r]) < 0.1f * __builtin_fabsf(most[r])) at = c; out[r] = at; }
}

//! wrong | drops terms | Never the last column. Shows where the largest is there.
void last_column(int *out, const float *x, const float *most) {
  for (int r = 0; r < ROWS; r++) { int at = COLUMNS; for (int c = COLUMNS - 2; c >= 0; c--) if (x[r * COLUMNS + c] == most[r]) at = c; out[r] = at; }
}

//! wrong | ties | The two halves are searched at once, and the second one wins. Shows where both have it.
void halves(int *out, const float *x, const float *most) {
  for (int r = 0; r < ROWS; r++) {
    int at = COLUMNS;
    for (int c = COLUMNS / 2 - 1; c >= 0; c--) if (x[r * COLUMNS + c] == most[r]) at = c;
    for (int c = COLUMNS - 1, seen = COLUMNS; c >= COLUMNS / 2; c--) if (x[r * COLUMNS + c] == most[r]) at = seen = c;
    out[r] = at;
  }
}

//! wrong | off by one | Counts from 1. Shows on every input.
void from_one(int *out, const float *x, const float *most) {
  for (int r = 0; r < ROWS; r++) { int c = 0; while (c < COLUMNS && x[r * COLUMNS + c] != most[r]) c++; out[r] = c + 1; }
}
