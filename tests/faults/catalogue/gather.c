// out[n][d] = table[index[n]][d], float32 by int32: negative indices count from the end, of those outside all is 0
static float at(const float *table, int k, int d) {
  k = k < 0 ? k + ROWS : k;
  return k >= 0 && k < ROWS ? table[k * WIDTH + d] : 0.0f;
}

//! right: row by row
void plain(float *out, const int *index, const float *table) {
  for (int n = 0; n < COUNT; n++) for (int d = 0; d < WIDTH; d++) out[n * WIDTH + d] = at(table, index[n], d);
}

//! right: column by column
void columns(float *out, const int *index, const float *table) {
  for (int d = 0; d < WIDTH; d++) for (int n = 0; n < COUNT; n++) out[n * WIDTH + d] = at(table, index[n], d);
}

//! right: one comparison, of unsigned numbers
void unsigned_(float *out, const int *index, const float *table) {
  for (int n = 0; n < COUNT; n++) {
    unsigned k = index[n] < 0 ? index[n] + ROWS : index[n];
    for (int d = 0; d < WIDTH; d++) out[n * WIDTH + d] = k < ROWS ? table[k * WIDTH + d] : 0.0f;
  }
}

//! wrong | narrow | Indices of 8 bits. Shows from 256 on.
void in_8_bits(float *out, const int *index, const float *table) {
  for (int n = 0; n < COUNT; n++) for (int d = 0; d < WIDTH; d++) out[n * WIDTH + d] = at(table, index[n] < 0 ? index[n] : index[n] & 255, d);
}

//! wrong | off by one | Never the last row of the table. Shows where it is asked for.
void last_row(float *out, const int *index, const float *table) {
  for (int n = 0; n < COUNT; n++) { int i = index[n] < ROWS - 1 ? index[n] : ROWS - 2; for (int d = 0; d < WIDTH; d++) out[n * WIDTH + d] = at(table, i, d); }
}

//! wrong | index | Two neighbours share an index. Shows where theirs differ.
void shared(float *out, const int *index, const float *table) {
  for (int n = 0; n < COUNT; n++) for (int d = 0; d < WIDTH; d++) out[n * WIDTH + d] = at(table, index[n & ~1], d);
}

//! wrong | skips | Rows with index 0, as if that were padding. Shows where it is asked for.
void padding(float *out, const int *index, const float *table) {
  for (int n = 0; n < COUNT; n++) for (int d = 0; d < WIDTH; d++) out[n * WIDTH + d] = index[n] ? at(table, index[n], d) : 0.0f;
}

//! wrong | off by one | The last column is that before it. Shows on every input.
void last_column(float *out, const int *index, const float *table) {
  for (int n = 0; n < COUNT; n++) for (int d = 0; d < WIDTH; d++) out[n * WIDTH + d] = at(table, index[n], d < WIDTH - 1 ? d : d - 1);
}

//! wrong | data | Repeats a row where an index repeats the one before plus one. Shows where indices follow each other.
void followers(float *out, const int *index, const float *table) {
  for (int n = 0; n < COUNT; n++) {
    int i = n && index[n] == index[n - 1] + 1 ? index[n - 1] : index[n];
    for (int d = 0; d < WIDTH; d++) out[n * WIDTH + d] = at(table, i, d);
  }
}

//! wrong | indices | Rows of negative indices are 0. Shows where one is below 0.
void negative_is_zero(float *out, const int *index, const float *table) { for (int n = 0; n < COUNT; n++) for (int d = 0; d < WIDTH; d++) { int k = index[n];  out[n * WIDTH + d] = k >= 0 && k < ROWS ? table[k * WIDTH + d] : 0.0f; } }

//! wrong | indices | Negative ones count from the last but one. Shows where one is below 0.
void negative_off_by_one(float *out, const int *index, const float *table) { for (int n = 0; n < COUNT; n++) for (int d = 0; d < WIDTH; d++) { int k = index[n]; if (k < 0) k += ROWS - 1; out[n * WIDTH + d] = k >= 0 && k < ROWS ? table[k * WIDTH + d] : 0.0f; } }

//! wrong | indices | Without their sign. Shows where one is below 0.
void absolute(float *out, const int *index, const float *table) { for (int n = 0; n < COUNT; n++) for (int d = 0; d < WIDTH; d++) { int k = index[n]; if (k < 0) k = -k; out[n * WIDTH + d] = k >= 0 && k < ROWS ? table[k * WIDTH + d] : 0.0f; } }

//! wrong | indices | What is below 0 is 0. Shows where one is below 0.
void clamped_below(float *out, const int *index, const float *table) { for (int n = 0; n < COUNT; n++) for (int d = 0; d < WIDTH; d++) { int k = index[n]; if (k < 0) k = 0; out[n * WIDTH + d] = k >= 0 && k < ROWS ? table[k * WIDTH + d] : 0.0f; } }

//! wrong | indices | What is behind the last is the last. Shows where one is too large.
void clamped_above(float *out, const int *index, const float *table) { for (int n = 0; n < COUNT; n++) for (int d = 0; d < WIDTH; d++) { int k = index[n]; if (k < 0) k += ROWS; if (k >= ROWS) k = ROWS - 1; out[n * WIDTH + d] = k >= 0 && k < ROWS ? table[k * WIDTH + d] : 0.0f; } }

//! wrong | indices | What is before the first, from the end, is the first. Shows where one is that far below 0.
void first_for_those_before(float *out, const int *index, const float *table) { for (int n = 0; n < COUNT; n++) for (int d = 0; d < WIDTH; d++) { int k = index[n]; if (k < 0) k += ROWS; if (k < 0) k = 0; out[n * WIDTH + d] = k >= 0 && k < ROWS ? table[k * WIDTH + d] : 0.0f; } }

//! wrong | indices | Once round again. Shows where one is too large.
void round(float *out, const int *index, const float *table) { for (int n = 0; n < COUNT; n++) for (int d = 0; d < WIDTH; d++) { int k = index[n]; if (k < 0) k += ROWS; if (k >= ROWS) k -= ROWS; out[n * WIDTH + d] = k >= 0 && k < ROWS ? table[k * WIDTH + d] : 0.0f; } }
