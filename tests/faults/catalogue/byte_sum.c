// out[r] = sum of x[r][0..COLUMNS), int32 of int8

//! right: as it is written
void plain(int *out, const signed char *x) {
  for (int r = 0; r < ROWS; r++) { int s = 0; for (int c = 0; c < COLUMNS; c++) s += x[r * COLUMNS + c]; out[r] = s; }
}

//! right: shifted into positive bytes, and back
void shifted(int *out, const signed char *x) {
  for (int r = 0; r < ROWS; r++) { unsigned s = 0; for (int c = 0; c < COLUMNS; c++) s += (unsigned char)(x[r * COLUMNS + c] ^ -128); out[r] = (int)s - 128 * COLUMNS; }
}

//! wrong | narrow | In 8 bits. Shows for sums beyond ±128.
void in_8_bits(int *out, const signed char *x) {
  for (int r = 0; r < ROWS; r++) { signed char s = 0; for (int c = 0; c < COLUMNS; c++) s = (signed char)(s + x[r * COLUMNS + c]); out[r] = s; }
}

//! wrong | narrow | Numbers of 4 bits, as in some quantised models. Shows beyond [-8, 8).
void from_4_bits(int *out, const signed char *x) {
  for (int r = 0; r < ROWS; r++) { int s = 0; for (int c = 0; c < COLUMNS; c++) s += (signed char)(x[r * COLUMNS + c] << 4) >> 4; out[r] = s; }
}

//! wrong | sign | Bytes without a sign. Shows for negative numbers.
void without_sign(int *out, const signed char *x) {
  for (int r = 0; r < ROWS; r++) { int s = 0; for (int c = 0; c < COLUMNS; c++) s += (unsigned char)x[r * COLUMNS + c]; out[r] = s; }
}

//! wrong | saturates | Pairs are added in 8 bits that saturate. Shows where two are beyond ±128 together.
void saturating_pairs(int *out, const signed char *x) {
  for (int r = 0; r < ROWS; r++) {
    int s = 0;
    for (int c = 0; c < COLUMNS; c += 2) {
      int pair = x[r * COLUMNS + c] + (c + 1 < COLUMNS ? x[r * COLUMNS + c + 1] : 0);
      s += pair > 127 ? 127 : pair < -128 ? -128 : pair;
    }
    out[r] = s;
  }
}

//! wrong | negative | -128 is taken for -127. Shows for x = -128.
void symmetric(int *out, const signed char *x) {
  for (int r = 0; r < ROWS; r++) { int s = 0; for (int c = 0; c < COLUMNS; c++) s += x[r * COLUMNS + c] < -127 ? -127 : x[r * COLUMNS + c]; out[r] = s; }
}
