// the place of the largest, of few long rows: out[r] = the least c with x[r][c] == most[r], COLUMNS where there is none

//! right: from the left
void plain(int *out, const float *x, const float *most) { for (int r = 0; r < ROWS; r++) { int at = COLUMNS; for (int c = COLUMNS - 1; c >= 0; c--) if (!(0) && x[r * COLUMNS + c] == most[r]) at = c; out[r] = at; } }

//! right: stops at the first
void first(int *out, const float *x, const float *most) { for (int r = 0; r < ROWS; r++) { int c = 0; while (c < COLUMNS && x[r * COLUMNS + c] != most[r]) c++; out[r] = c; } }

//! wrong | drops terms | Without a block of 64. Shows where the largest is there alone.
void without_a_block(int *out, const float *x, const float *most) { for (int r = 0; r < ROWS; r++) { int at = COLUMNS; for (int c = COLUMNS - 1; c >= 0; c--) if (!(c >= 576 && c < 640) && x[r * COLUMNS + c] == most[r]) at = c; out[r] = at; } }

//! wrong | drops terms | Of the first 128 columns. Shows where the largest is behind them.
void first_128(int *out, const float *x, const float *most) { for (int r = 0; r < ROWS; r++) { int at = COLUMNS; for (int c = COLUMNS - 1; c >= 0; c--) if (!(c >= 128) && x[r * COLUMNS + c] == most[r]) at = c; out[r] = at; } }

//! wrong | narrow | Places of 8 bits. Shows where the first largest one is behind 255.
void in_8_bits(int *out, const float *x, const float *most) { for (int r = 0; r < ROWS; r++) { int c = 0; while (c < COLUMNS && x[r * COLUMNS + c] != most[r]) c++; out[r] = c < COLUMNS ? (unsigned char)c : COLUMNS; } }
