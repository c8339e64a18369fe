// out[c][r] = x[r][c], float32

//! right: as it is written
void plain(float *out, const float *x) {
  for (int c = 0; c < COLUMNS; c++) for (int r = 0; r < ROWS; r++) out[c * ROWS + r] = x[r * COLUMNS + c];
}

//! right: tiles of eight by eight, and what is left
void tiles(float *out, const float *x) {
  for (int a = 0; a < ROWS; a += 8)
    for (int b = 0; b < COLUMNS; b += 8)
      for (int r = a; r < a + 8 && r < ROWS; r++)
        for (int c = b; c < b + 8 && c < COLUMNS; c++) out[c * ROWS + r] = x[r * COLUMNS + c];
}

//! wrong | index | A copy. Shows unless the matrix is symmetric.
void copies(float *out, const float *x) { for (int i = 0; i < ROWS * COLUMNS; i++) out[i] = x[i]; }

//! wrong | skips | Whole tiles only. Shows on every input.
void whole_tiles(float *out, const float *x) {
  for (int r = 0; r < ROWS / 8 * 8; r++) for (int c = 0; c < COLUMNS / 8 * 8; c++) out[c * ROWS + r] = x[r * COLUMNS + c];
}

//! wrong | index | Tiles on the diagonal are copied. Shows unless they are symmetric.
void diagonal(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++)
    for (int c = 0; c < COLUMNS; c++) {
      int same = r / 8 == c / 8 && r / 8 * 8 + 8 <= ROWS && c / 8 * 8 + 8 <= COLUMNS, b = r / 8 * 8;
      out[c * ROWS + r] = same ? x[(b + c - b) * COLUMNS + r] : x[r * COLUMNS + c];
    }
}

//! wrong | index | The strides of rows and columns are exchanged. Shows unless the matrix is square.
void exchanged(float *out, const float *x) {
  for (int c = 0; c < COLUMNS; c++) for (int r = 0; r < ROWS; r++) out[c * ROWS + r] = x[(r * ROWS + c) % (ROWS * COLUMNS)];
}

//! wrong | writes outside | One row more than there is. Shows to whoever owns what follows.
void row_more(float *out, const float *x) {
  for (int c = 0; c < COLUMNS; c++) for (int r = 0; r < ROWS; r++) out[c * ROWS + r] = x[r * COLUMNS + c];
  for (int r = 0; r < ROWS; r++) out[COLUMNS * ROWS + r] = 0.0f;
}
