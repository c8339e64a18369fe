// out[r][c] = sum of x[r][0..c], float32

//! right: one running sum
void plain(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS; c++) out[r * COLUMNS + c] = s += x[r * COLUMNS + c]; }
}

//! right: in blocks of 32, to which the sum of those before is added
void blocks(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) {
    float before = 0.0f;
    for (int b = 0; b < COLUMNS; b += 32) {
      float s = 0.0f;
      for (int c = b; c < COLUMNS && c < b + 32; c++) { s += x[r * COLUMNS + c]; out[r * COLUMNS + c] = before + s; }
      before += s;
    }
  }
}

//! wrong | off by one | Without the element itself. Shows on every input.
void exclusive(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS; c++) { out[r * COLUMNS + c] = s; s += x[r * COLUMNS + c]; } }
}

//! wrong | carried over | Begins anew after 128 columns. Shows beyond them.
void restarts(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS; c++) { if (c == 128) s = 0.0f; out[r * COLUMNS + c] = s += x[r * COLUMNS + c]; } }
}

//! wrong | carried over | Goes on from the row before. Shows from the second row on.
void carried(float *out, const float *x) { float s = 0.0f; for (int i = 0; i < ROWS * COLUMNS; i++) out[i] = s += x[i]; }

//! wrong | precision | In 16 bits of float. Shows on every input.
void in_half(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) { _Float16 s = 0; for (int c = 0; c < COLUMNS; c++) out[r * COLUMNS + c] = (float)(s += (_Float16)x[r * COLUMNS + c]); }
}

//! wrong | drops terms | The last column repeats the one before. Shows on every input.
void last_column(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS; c++) out[r * COLUMNS + c] = s += c < COLUMNS - 1 ? x[r * COLUMNS + c] : 0.0f; }
}

//! wrong | index | From the other end. Shows on every input.
void reversed(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = COLUMNS - 1; c >= 0; c--) out[r * COLUMNS + c] = s += x[r * COLUMNS + c]; }
}

//! wrong | stale output | The sum begins with what the last element was. Shows unless it was 0.
void from_the_last(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) { float s = r == ROWS - 1 ? out[r * COLUMNS] : 0.0f; for (int c = 0; c < COLUMNS; c++) out[r * COLUMNS + c] = s += x[r * COLUMNS + c]; }
}
