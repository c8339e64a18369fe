// out[n][d] = table[index[n]][d], float32 by int32: an embedding

//! right: row by row
void plain(float *out, const int *index, const float *table) {
  for (int n = 0; n < COUNT; n++) for (int d = 0; d < WIDTH; d++) out[n * WIDTH + d] = table[index[n] * WIDTH + d];
}

//! right: column by column
void columns(float *out, const int *index, const float *table) {
  for (int d = 0; d < WIDTH; d++) for (int n = 0; n < COUNT; n++) out[n * WIDTH + d] = table[index[n] * WIDTH + d];
}

//! wrong | narrow | Indices of 8 bits. Shows from 256 on.
void in_8_bits(float *out, const int *index, const float *table) {
  for (int n = 0; n < COUNT; n++) for (int d = 0; d < WIDTH; d++) out[n * WIDTH + d] = table[(index[n] & 255) * WIDTH + d];
}

//! wrong | off by one | Never the last row of the table. Shows where it is asked for.
void last_row(float *out, const int *index, const float *table) {
  for (int n = 0; n < COUNT; n++) { int i = index[n] < ROWS - 1 ? index[n] : ROWS - 2; for (int d = 0; d < WIDTH; d++) out[n * WIDTH + d] = table[i * WIDTH + d]; }
}

//! wrong | index | Two neighbours share an index. Shows where theirs differ.
void shared(float *out, const int *index, const float *table) {
  for (int n = 0; n < COUNT; n++) for (int d = 0; d < WIDTH; d++) out[n * WIDTH + d] = table[index[n & ~1] * WIDTH + d];
}

//! wrong | skips | Rows with index 0, as if that were padding. Shows where it is asked for.
void padding(float *out, const int *index, const float *table) {
  for (int n = 0; n < COUNT; n++) for (int d = 0; d < WIDTH; d++) out[n * WIDTH + d] = index[n] ? table[index[n] * WIDTH + d] : 0.0f;
}

//! wrong | off by one | The last column is that before it. Shows on every input.
void last_column(float *out, const int *index, const float *table) {
  for (int n = 0; n < COUNT; n++) for (int d = 0; d < WIDTH; d++) out[n * WIDTH + d] = table[index[n] * WIDTH + (d < WIDTH - 1 ? d : d - 1)];
}

//! wrong | data | Repeats a row where an index repeats the one before plus one. Shows where indices follow each other.
void followers(float *out, const int *index, const float *table) {
  for (int n = 0; n < COUNT; n++) {
    int i = n && index[n] == index[n - 1] + 1 ? index[n - 1] : index[n];
    for (int d = 0; d < WIDTH; d++) out[n * WIDTH + d] = table[i * WIDTH + d];
  }
}
