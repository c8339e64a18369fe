// out[r] = the largest of two, float32: rows so short that all of them may be -inf, or far below 0

//! right: one comparison
void plain(float *out, const float *x) { for (int r = 0; r < ROWS; r++) out[r] = x[2 * r] > x[2 * r + 1] ? x[2 * r] : x[2 * r + 1]; }

//! wrong | infinity | Starts from the smallest finite number. Shows where both are -inf, as in a row that is masked.
void from_smallest(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) {
    float m = -3.4028234e38f;
    for (int c = 0; c < 2; c++) if (x[2 * r + c] > m) m = x[2 * r + c];
    out[r] = m;
  }
}

//! wrong | infinity | Starts from -1e30. Shows where both are -inf, or below it.
void from_1e30(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) {
    float m = -1e30f;
    for (int c = 0; c < 2; c++) if (x[2 * r + c] > m) m = x[2 * r + c];
    out[r] = m;
  }
}

//! wrong | large | Starts from -1000. Shows where both are below it.
void from_1000(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) {
    float m = -1e3f;
    for (int c = 0; c < 2; c++) if (x[2 * r + c] > m) m = x[2 * r + c];
    out[r] = m;
  }
}

//! wrong | negative | Starts from -1. Shows where both are below it.
void from_minus_one(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) {
    float m = -1.0f;
    for (int c = 0; c < 2; c++) if (x[2 * r + c] > m) m = x[2 * r + c];
    out[r] = m;
  }
}

//! wrong | infinity | By half of sum and difference. Shows where the two differ in size, and for infinities.
void by_difference(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) { float a = x[2 * r], b = x[2 * r + 1]; out[r] = 0.5f * (a + b + __builtin_fabsf(a - b)); }
}

//! wrong | integers | Compares the bits as integers. Shows where both are negative.
void by_bits(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) { const int *b = (const int *)x + 2 * r; out[r] = x[2 * r + (b[1] > b[0])]; }
}
