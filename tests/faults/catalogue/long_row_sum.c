// out[r] = sum of x[r][0..COLUMNS), float32: thousands, one by one

//! right: one by one
void plain(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS; c++) s += x[r * COLUMNS + c]; out[r] = s; } }

//! right: one by one, from the end
void from_the_end(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = COLUMNS - 1; c >= 0; c--) s += x[r * COLUMNS + c]; out[r] = s; } }

//! right: two halves, each one by one
void halves(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { float s = 0.0f, t = 0.0f; for (int c = 0; c < COLUMNS / 2; c++) s += x[r * COLUMNS + c]; for (int c = COLUMNS / 2; c < COLUMNS; c++) t += x[r * COLUMNS + c]; s += t; out[r] = s; } }

//! right: sixteen sums at once
void sixteen(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { float p[16] = {0.0f}, s = 0.0f; for (int c = 0; c < COLUMNS; c++) p[c & 15] += x[r * COLUMNS + c]; for (int i = 0; i < 16; i++) s += p[i]; out[r] = s; } }

//! wrong | drops terms | The last column. Shows on every input.
void last_column(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS - 1; c++) s += x[r * COLUMNS + c]; out[r] = s; } }

//! wrong | drops terms | Column 1,234. Shows on every input.
void one_column(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS; c++) if (c != 1234) s += x[r * COLUMNS + c]; out[r] = s; } }

//! wrong | data | Column 77 twice. Shows on every input.
void twice(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS; c++) s += x[r * COLUMNS + c] * (c == 77 ? 2.0f : 1.0f); out[r] = s; } }

//! wrong | precision | Added up in 16 bits of float. Shows on every input.
void in_half(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { _Float16 s = 0; for (int c = 0; c < COLUMNS; c++) s += (_Float16)(x[r * COLUMNS + c]); out[r] = (float)s; } }

//! wrong | precision | Added up in 16 bits of each float. Shows on every input.
void in_bfloat(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { float s = 0.0f; for (int c = 0; c < COLUMNS; c++) { union { float f; unsigned u; } v = {s + x[r * COLUMNS + c]}; v.u = (v.u + 0x8000u) & 0xffff0000u; s = v.f; } out[r] = s; } }
