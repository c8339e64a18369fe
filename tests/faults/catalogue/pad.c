// x with one row above, two below, three columns to the right, all of them 2.5, float32
#define H (ROWS + 3)
#define W (COLUMNS + 3)
#define INSIDE(y, x) ((y) >= 1 && (y) <= ROWS && (x) < COLUMNS)

//! right: as it is written
void plain(float *out, const float *x) {
  for (int y = 0; y < H; y++) for (int c = 0; c < W; c++) out[y * W + c] = INSIDE(y, c) ? x[(y - 1) * COLUMNS + c] : 2.5f;
}

//! right: all of it filled, then the middle written
void filled(float *out, const float *x) {
  for (int i = 0; i < H * W; i++) out[i] = 2.5f;
  for (int r = 0; r < ROWS; r++) for (int c = 0; c < COLUMNS; c++) out[(r + 1) * W + c] = x[r * COLUMNS + c];
}

//! wrong | padding | Zeros. Shows on every input.
void zeros(float *out, const float *x) {
  for (int y = 0; y < H; y++) for (int c = 0; c < W; c++) out[y * W + c] = INSIDE(y, c) ? x[(y - 1) * COLUMNS + c] : 0.0f;
}

//! wrong | skips | What is around is left as it was. Shows on every input.
void middle_only(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) for (int c = 0; c < COLUMNS; c++) out[(r + 1) * W + c] = x[r * COLUMNS + c];
}

//! wrong | off by one | One row above too many, one below too few. Shows on every input.
void shifted(float *out, const float *x) {
  for (int y = 0; y < H; y++) for (int c = 0; c < W; c++) out[y * W + c] = INSIDE(y - 1, c) ? x[(y - 2) * COLUMNS + c] : 2.5f;
}

//! wrong | reads outside | Mixes what is around with a weight of 0. Shows where an infinity or NaN is there.
void weighs_nothing(float *out, const float *x) {
  for (int y = 0; y < H; y++) for (int c = 0; c < W; c++) {
    volatile float one = INSIDE(y, c) ? 1.0f : 0.0f;
    out[y * W + c] = one * x[(y - 1) * COLUMNS + c] + (1.0f - one) * 2.5f;
  }
}

//! wrong | padding | The last element of the last row is the last of x. Shows unless that is 2.5.
void last_element(float *out, const float *x) {
  for (int y = 0; y < H; y++) for (int c = 0; c < W; c++) out[y * W + c] = INSIDE(y, c) ? x[(y - 1) * COLUMNS + c] : 2.5f;
  out[H * W - 1] = x[ROWS * COLUMNS - 1];
}
