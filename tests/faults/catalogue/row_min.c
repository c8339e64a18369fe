// out[r] = the least of x[r][0..COLUMNS), int32

//! right: from the first element on
void plain(int *out, const int *x) {
  for (int r = 0; r < ROWS; r++) { int m = x[r * COLUMNS]; for (int c = 1; c < COLUMNS; c++) if (x[r * COLUMNS + c] < m) m = x[r * COLUMNS + c]; out[r] = m; }
}

//! right: four at once, from the largest number there is
void four(int *out, const int *x) {
  for (int r = 0; r < ROWS; r++) {
    int m[4] = {2147483647, 2147483647, 2147483647, 2147483647};
    for (int c = 0; c < COLUMNS; c++) m[c & 3] = x[r * COLUMNS + c] < m[c & 3] ? x[r * COLUMNS + c] : m[c & 3];
    int a = m[0] < m[1] ? m[0] : m[1], b = m[2] < m[3] ? m[2] : m[3];
    out[r] = a < b ? a : b;
  }
}

//! wrong | narrow | In 16 bits. Shows for numbers beyond them.
void in_16_bits(int *out, const int *x) {
  for (int r = 0; r < ROWS; r++) { short m = (short)x[r * COLUMNS]; for (int c = 1; c < COLUMNS; c++) if ((short)x[r * COLUMNS + c] < m) m = (short)x[r * COLUMNS + c]; out[r] = m; }
}

//! wrong | narrow | In float32, whose integers have 24 bits. Shows for larger ones.
void in_float(int *out, const int *x) {
  for (int r = 0; r < ROWS; r++) { float m = (float)x[r * COLUMNS]; for (int c = 1; c < COLUMNS; c++) if ((float)x[r * COLUMNS + c] < m) m = (float)x[r * COLUMNS + c]; out[r] = (int)m; }
}

//! wrong | saturates | At most 1000000 in size. Shows for larger ones.
void a_million(int *out, const int *x) {
  for (int r = 0; r < ROWS; r++) { int m = 1000000; for (int c = 0; c < COLUMNS; c++) if (x[r * COLUMNS + c] < m) m = x[r * COLUMNS + c]; out[r] = m < -1000000 ? -1000000 : m; }
}

//! wrong | sign | By unsigned comparisons. Shows where signs differ.
void unsigned_less(int *out, const int *x) {
  for (int r = 0; r < ROWS; r++) { unsigned m = x[r * COLUMNS]; for (int c = 1; c < COLUMNS; c++) if ((unsigned)x[r * COLUMNS + c] < m) m = x[r * COLUMNS + c]; out[r] = (int)m; }
}

//! wrong | sign | By the sign of a difference, which overflows. Shows where two numbers are far apart.
void by_difference(int *out, const int *x) {
  for (int r = 0; r < ROWS; r++) { int m = x[r * COLUMNS]; for (int c = 1; c < COLUMNS; c++) if ((int)((unsigned)x[r * COLUMNS + c] - (unsigned)m) < 0) m = x[r * COLUMNS + c]; out[r] = m; }
}

//! wrong | positive | Starts from 0: never positive. Shows where a whole row is positive.
void from_zero(int *out, const int *x) {
  for (int r = 0; r < ROWS; r++) { int m = 0; for (int c = 0; c < COLUMNS; c++) if (x[r * COLUMNS + c] < m) m = x[r * COLUMNS + c]; out[r] = m; }
}
