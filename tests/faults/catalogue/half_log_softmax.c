// out[r][c] = 100 x[r][c] - most[r] - log(total[r]), float16: the last pass of a log-softmax of scaled scores
typedef _Float16 half;
double log(double);
float logf(float);

//! right: in double
void plain(half *out, const half *x, const half *most, const half *total) { for (int r = 0; r < ROWS; r++) for (int c = 0; c < COLUMNS; c++) out[r * COLUMNS + c] = (half)(100.0 * (double)x[r * COLUMNS + c] - (double)most[r] - log((double)total[r])); }

//! right: every step in 16 bits
void in_half(half *out, const half *x, const half *most, const half *total) { for (int r = 0; r < ROWS; r++) for (int c = 0; c < COLUMNS; c++) out[r * COLUMNS + c] = (half)((half)((half)(x[r * COLUMNS + c] * (half)100.0f) - most[r]) - (half)logf((float)total[r])); }

//! wrong | data | The total itself. Shows on every input.
void no_logarithm(half *out, const half *x, const half *most, const half *total) { for (int r = 0; r < ROWS; r++) for (int c = 0; c < COLUMNS; c++) out[r * COLUMNS + c] = (half)(100.0f * (float)x[r * COLUMNS + c] - (float)most[r] - (float)total[r]); }

//! wrong | index | The first row's largest for all. Shows from the second row on.
void first_most(half *out, const half *x, const half *most, const half *total) { for (int r = 0; r < ROWS; r++) for (int c = 0; c < COLUMNS; c++) out[r * COLUMNS + c] = (half)(100.0f * (float)x[r * COLUMNS + c] - (float)most[0] - logf((float)total[r])); }

//! wrong | sign | The largest is added. Shows on every input.
void added(half *out, const half *x, const half *most, const half *total) { for (int r = 0; r < ROWS; r++) for (int c = 0; c < COLUMNS; c++) out[r * COLUMNS + c] = (half)(100.0f * (float)x[r * COLUMNS + c] + (float)most[r] - logf((float)total[r])); }
