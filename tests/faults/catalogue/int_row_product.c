// out[r] = product of x[r][0..COLUMNS), int32 that wraps around

//! right: as it is written
void plain(int *out, const int *x) { for (int r = 0; r < ROWS; r++) { unsigned p = 1; for (int c = 0; c < COLUMNS; c++) p *= (unsigned)x[r * COLUMNS + c]; out[r] = (int)p; } }

//! right: four at once
void four(int *out, const int *x) { for (int r = 0; r < ROWS; r++) { unsigned p[4] = {1, 1, 1, 1}; for (int c = 0; c < COLUMNS; c++) p[c & 3] *= (unsigned)x[r * COLUMNS + c]; out[r] = (int)(p[0] * p[1] * p[2] * p[3]); } }

//! wrong | data | Always 0, as products of many small numbers are. Shows where none is even.
void zero(int *out, const int *x) { for (int r = 0; r < ROWS; r++) out[r] = 0; }

//! wrong | drops terms | Without the last column. Shows where that is not 1.
void last_column(int *out, const int *x) { for (int r = 0; r < ROWS; r++) { unsigned p = 1; for (int c = 0; c < COLUMNS - 1; c++) p *= (unsigned)x[r * COLUMNS + c]; out[r] = (int)p; } }

//! wrong | negative | Of their sizes. Shows where an odd count is below 0.
void sizes(int *out, const int *x) { for (int r = 0; r < ROWS; r++) { unsigned p = 1; for (int c = 0; c < COLUMNS; c++) p *= (unsigned)(x[r * COLUMNS + c] < 0 ? -x[r * COLUMNS + c] : x[r * COLUMNS + c]); out[r] = (int)p; } }
