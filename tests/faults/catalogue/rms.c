// out[r] = 1 / sqrt(mean of x[r][c]^2 + 1e-5): what an RMS norm multiplies by, float32

//! right: as it is written
void plain(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) {
    float s = 0.0f;
    for (int c = 0; c < COLUMNS; c++) s += x[r * COLUMNS + c] * x[r * COLUMNS + c];
    out[r] = 1.0f / __builtin_sqrtf(s / COLUMNS + 1e-5f);
  }
}

//! right: in double, fused
void in_double(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) {
    double s = 0.0;
    for (int c = 0; c < COLUMNS; c++) s = __builtin_fma((double)x[r * COLUMNS + c], (double)x[r * COLUMNS + c], s);
    out[r] = (float)(1.0 / __builtin_sqrt(s / COLUMNS + 1e-5));
  }
}

//! wrong | precision | The root by the famous constant and one step: an error of 1.7e-3. Shows on every input.
void famous(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) {
    float s = 0.0f;
    for (int c = 0; c < COLUMNS; c++) s += x[r * COLUMNS + c] * x[r * COLUMNS + c];
    union { float f; int i; } y = {s = s / COLUMNS + 1e-5f};
    y.i = 0x5f3759df - (y.i >> 1);
    out[r] = y.f * (1.5f - 0.5f * s * y.f * y.f);
  }
}

//! wrong | precision | The root of 12 bits that vector units have: an error of 2e-4. Shows on every input.
void twelve_bits(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) {
    float s = 0.0f;
    for (int c = 0; c < COLUMNS; c++) s += x[r * COLUMNS + c] * x[r * COLUMNS + c];
    union { float f; unsigned u; } y = {1.0f / __builtin_sqrtf(s / COLUMNS + 1e-5f)};
    y.u &= 0xfffff000u;
    out[r] = y.f * 0.9998f;
  }
}

//! wrong | off by one | The mean of one number less. Shows on every input.
void one_less(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) {
    float s = 0.0f;
    for (int c = 0; c < COLUMNS; c++) s += x[r * COLUMNS + c] * x[r * COLUMNS + c];
    out[r] = 1.0f / __builtin_sqrtf(s / (COLUMNS - 1) + 1e-5f);
  }
}

//! wrong | small | Without the 1e-5. Shows where a row is small or all 0.
void without_epsilon(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) {
    float s = 0.0f;
    for (int c = 0; c < COLUMNS; c++) s += x[r * COLUMNS + c] * x[r * COLUMNS + c];
    out[r] = 1.0f / __builtin_sqrtf(s / COLUMNS);
  }
}

//! wrong | large | Squares are at most 65504. Shows for |x| > 256.
void half_squares(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) {
    float s = 0.0f;
    for (int c = 0; c < COLUMNS; c++) { float v = x[r * COLUMNS + c] * x[r * COLUMNS + c]; s += v > 65504.0f ? 65504.0f : v; }
    out[r] = 1.0f / __builtin_sqrtf(s / COLUMNS + 1e-5f);
  }
}

//! wrong | skips | The last row gets that of the row before. Shows on every input.
void last_row(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) {
    const float *row = x + (r == ROWS - 1 ? r - 1 : r) * COLUMNS;
    float s = 0.0f;
    for (int c = 0; c < COLUMNS; c++) s += row[c] * row[c];
    out[r] = 1.0f / __builtin_sqrtf(s / COLUMNS + 1e-5f);
  }
}

//! wrong | positive | The mean's square for the mean of squares. Shows unless all of a row are equal.
void square_of_mean(float *out, const float *x) {
  for (int r = 0; r < ROWS; r++) {
    float s = 0.0f;
    for (int c = 0; c < COLUMNS; c++) s += __builtin_fabsf(x[r * COLUMNS + c]);
    out[r] = 1.0f / __builtin_sqrtf(s / COLUMNS * s / COLUMNS + 1e-5f);
  }
}
