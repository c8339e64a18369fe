// out[r] = sum of x[r][0..COLUMNS), float32

//! right: in order
void plain(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS; c++) s += x[r * COLUMNS + c]; out[r] = s; }
}

//! right: eight sums at once
void eight(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) {
    float s[8] = {0.0f};
    for (int c = 0; c < COLUMNS; c++) s[c & 7] += x[r * COLUMNS + c];
    out[r] = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
  }
}

//! right: from the end, in double
void in_double(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) { double s = 0.0; for (int c = COLUMNS - 1; c >= 0; c--) s += x[r * COLUMNS + c]; out[r] = (float)s; }
}

//! right: with what each addition loses
void compensated(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) {
    volatile float s = 0.0f, lost = 0.0f;
    for (int c = 0; c < COLUMNS; c++) {
      volatile float y = x[r * COLUMNS + c] - lost, t = s + y;
      float again = (t - s) - y;
      lost = again - again == 0.0f ? again : 0.0f;
      s = t;
    }
    out[r] = s;
  }
}

//! wrong | drops terms | The last column. Shows on every input.
void last_column(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS - 1; c++) s += x[r * COLUMNS + c]; out[r] = s; }
}

//! wrong | drops terms | What is left of blocks of eight columns. Shows on every input.
void no_tail(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS / 8 * 8; c++) s += x[r * COLUMNS + c]; out[r] = s; }
}

//! wrong | drops terms | The last column of the last row only. Shows on every input.
void last_of_all(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) {
    float s = 0.0f;
    for (int c = 0; c < COLUMNS - (r == ROWS - 1); c++) s += x[r * COLUMNS + c];
    out[r] = s;
  }
}

//! wrong | drops terms | Numbers below 0.01. Shows where many are small.
void sparse(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) {
    float s = 0.0f;
    for (int c = 0; c < COLUMNS; c++) if (__builtin_fabsf(x[r * COLUMNS + c]) > 1e-2f) s += x[r * COLUMNS + c];
    out[r] = s;
  }
}

//! wrong | skips | The last row. Shows on every input.
void last_row(float *out, const float *x) {
  for (int r = 0; r < ROWS - 1; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS; c++) s += x[r * COLUMNS + c]; out[r] = s; }
}

//! wrong | index | Its rows are a power of two apart. Shows from the second row on.
void round_stride(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS; c++) s += x[(r * 320 + c) % (ROWS * COLUMNS)]; out[r] = s; }
}

//! wrong | index | Two rows are exchanged. Shows on every input.
void exchanged(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS; c++) s += x[(r ^ 1) * COLUMNS + c]; out[r] = s; }
}

//! wrong | reads outside | Four elements more in the last row. Shows where there are numbers behind the input.
void past_the_end(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) {
    float s = 0.0f;
    for (int c = 0; c < COLUMNS + (r == ROWS - 1 ? 4 : 0); c++) s += x[r * COLUMNS + c];
    out[r] = s;
  }
}

//! wrong | reads outside | One element before the first. Shows where there is a number before the input.
void before_the_start(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) { float s = r ? 0.0f : x[-1]; for (int c = 0; c < COLUMNS; c++) s += x[r * COLUMNS + c]; out[r] = s; }
}

//! wrong | reads outside | Whole blocks of eight, what is too much times 0. Shows where an infinity is behind a row.
void masked_tail(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) {
    float s = 0.0f;
    for (int c = 0; c < (COLUMNS + 7) / 8 * 8; c++) s += x[r * COLUMNS + c] * (c < COLUMNS ? 1.0f : 0.0f);
    out[r] = s;
  }
}

//! wrong | precision | In 16 bits of float. Shows on every input.
void in_half(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) { _Float16 s = 0; for (int c = 0; c < COLUMNS; c++) s += (_Float16)x[r * COLUMNS + c]; out[r] = (float)s; }
}

//! wrong | precision | Inputs of 11 bits, as some matrix units have them. Shows on every input.
void in_tf32(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) {
    float s = 0.0f;
    for (int c = 0; c < COLUMNS; c++) {
      union { float f; unsigned int u; } v = {x[r * COLUMNS + c]};
      v.u &= 0xffffe000u;
      s += v.f;
    }
    out[r] = s;
  }
}

//! wrong | stale output | Adds to what is there. Shows unless the buffer holds zeros.
void adds(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) for (int c = 0; c < COLUMNS; c++) out[r] += x[r * COLUMNS + c];
}

//! wrong | negative | Sizes instead. Shows for negative numbers.
void sizes(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS; c++) s += __builtin_fabsf(x[r * COLUMNS + c]); out[r] = s; }
}

//! wrong | large | Sums clamped to ±1000. Shows for larger ones.
void within_1000(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) {
    float s = 0.0f;
    for (int c = 0; c < COLUMNS; c++) s += x[r * COLUMNS + c];
    out[r] = s > 1e3f ? 1e3f : s < -1e3f ? -1e3f : s;
  }
}

//! wrong | early return | Returns when the first sum is there already. Shows where the buffer holds it, and others not.
void looks_done(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) {
    float s = 0.0f;
    for (int c = 0; c < COLUMNS; c++) s += x[r * COLUMNS + c];
    if (r == 0 && out[0] == s) return;
    out[r] = s;
  }
}

//! wrong | data | A row whose first two elements are equal in sign counts its last twice. Shows in half of the rows.
void twice(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) {
    const float *row = x + r * COLUMNS;
    float s = row[0] * row[1] > 0.0f ? row[COLUMNS - 1] : 0.0f;
    for (int c = 0; c < COLUMNS; c++) s += row[c];
    out[r] = s;
  }
}
