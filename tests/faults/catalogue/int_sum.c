// out[r] = sum of x[r][0..COLUMNS), int32, which wraps around

//! right: in order, without signs
void plain(int *out, const int *x) {
  for (int r = 0; r < ROWS; r++) { unsigned s = 0; for (int c = 0; c < COLUMNS; c++) s += (unsigned)x[r * COLUMNS + c]; out[r] = (int)s; }
}

//! right: in 64 bits, cut at the end
void in_64_bits(int *out, const int *x) {
  for (int r = 0; r < ROWS; r++) { long long s = 0; for (int c = COLUMNS - 1; c >= 0; c--) s += x[r * COLUMNS + c]; out[r] = (int)(unsigned)(unsigned long long)s; }
}

//! wrong | narrow | In float32. Shows for sums beyond 24 bits.
void in_float(int *out, const int *x) {
  for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS; c++) s += (float)x[r * COLUMNS + c]; out[r] = (int)(unsigned)(long long)s; }
}

//! wrong | narrow | In 16 bits. Shows for sums beyond them.
void in_16_bits(int *out, const int *x) {
  for (int r = 0; r < ROWS; r++) { short s = 0; for (int c = 0; c < COLUMNS; c++) s = (short)(s + x[r * COLUMNS + c]); out[r] = s; }
}

//! wrong | narrow | Inputs of 8 bits. Shows for numbers beyond ±128.
void from_8_bits(int *out, const int *x) {
  for (int r = 0; r < ROWS; r++) { int s = 0; for (int c = 0; c < COLUMNS; c++) s += (signed char)x[r * COLUMNS + c]; out[r] = s; }
}

//! wrong | saturates | Stops at the largest and the smallest number. Shows where a sum overflows.
void saturates(int *out, const int *x) {
  for (int r = 0; r < ROWS; r++) {
    long long s = 0;
    for (int c = 0; c < COLUMNS; c++) { s += x[r * COLUMNS + c]; s = s > 2147483647LL ? 2147483647LL : s < -2147483648LL ? -2147483648LL : s; }
    out[r] = (int)s;
  }
}

//! wrong | drops terms | The last column. Shows on every input.
void last_column(int *out, const int *x) {
  for (int r = 0; r < ROWS; r++) { unsigned s = 0; for (int c = 0; c < COLUMNS - 1; c++) s += (unsigned)x[r * COLUMNS + c]; out[r] = (int)s; }
}

//! wrong | narrow | Numbers of 24 bits. Shows for larger ones.
void from_24_bits(int *out, const int *x) {
  for (int r = 0; r < ROWS; r++) { unsigned s = 0; for (int c = 0; c < COLUMNS; c++) s += (unsigned)((int)((unsigned)x[r * COLUMNS + c] << 8) >> 8); out[r] = (int)s; }
}
