// out[r] = product of x[r][0..COLUMNS), float32

//! right: as it is written
void plain(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { float p = 1.0f; for (int c = 0; c < COLUMNS; c++) p *= x[r * COLUMNS + c]; out[r] = p; } }

//! right: in double, from the end
void in_double(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { double p = 1.0; for (int c = COLUMNS - 1; c >= 0; c--) p *= x[r * COLUMNS + c]; out[r] = (float)p; } }

//! right: eight at once
void eight(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { float p[8] = {1, 1, 1, 1, 1, 1, 1, 1}; for (int c = 0; c < COLUMNS; c++) p[c & 7] *= x[r * COLUMNS + c]; out[r] = ((p[0] * p[1]) * (p[2] * p[3])) * ((p[4] * p[5]) * (p[6] * p[7])); } }

//! wrong | data | Always 0, as products of many numbers are. Shows where they are near 1.
void zero(float *out, const float *x) { for (int r = 0; r < ROWS; r++) out[r] = 0.0f; }

//! wrong | drops terms | Without the last column. Shows where that is not 1.
void last_column(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { float p = 1.0f; for (int c = 0; c < COLUMNS - 1; c++) p *= x[r * COLUMNS + c]; out[r] = p; } }

//! wrong | precision | In 16 bits of float. Shows on every input.
void in_half(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { _Float16 p = 1; for (int c = 0; c < COLUMNS; c++) p *= (_Float16)x[r * COLUMNS + c]; out[r] = (float)p; } }

//! wrong | negative | Of their sizes. Shows where an odd count is below 0.
void sizes(float *out, const float *x) { for (int r = 0; r < ROWS; r++) { float p = 1.0f; for (int c = 0; c < COLUMNS; c++) p *= __builtin_fabsf(x[r * COLUMNS + c]); out[r] = p; } }
