// out[r][j] = x[r][index[r][j]], 0 where there is no such column: float32 by int32

//! right: as it is written
void plain(float *out, const int *index, const float *x) { for (int r = 0; r < ROWS; r++) for (int j = 0; j < COUNT; j++) { int k = index[r * COUNT + j];  out[r * COUNT + j] = k >= 0 && k < COLUMNS ? x[r * COLUMNS + k] : 0.0f; } }

//! right: one comparison, of unsigned numbers
void unsigned_(float *out, const int *index, const float *x) { for (int r = 0; r < ROWS; r++) for (int j = 0; j < COUNT; j++) { unsigned k = index[r * COUNT + j]; out[r * COUNT + j] = k < COLUMNS ? x[r * COLUMNS + k] : 0.0f; } }

//! wrong | indices | Negative ones count from the end. Shows where one is below 0.
void from_the_end(float *out, const int *index, const float *x) { for (int r = 0; r < ROWS; r++) for (int j = 0; j < COUNT; j++) { int k = index[r * COUNT + j]; if (k < 0) k += COLUMNS; out[r * COUNT + j] = k >= 0 && k < COLUMNS ? x[r * COLUMNS + k] : 0.0f; } }

//! wrong | indices | What is below 0 is 0. Shows where one is below 0.
void from_0(float *out, const int *index, const float *x) { for (int r = 0; r < ROWS; r++) for (int j = 0; j < COUNT; j++) { int k = index[r * COUNT + j]; if (k < 0) k = 0; out[r * COUNT + j] = k >= 0 && k < COLUMNS ? x[r * COLUMNS + k] : 0.0f; } }

//! wrong | indices | What is behind the last is the last. Shows where one is too large.
void to_the_last(float *out, const int *index, const float *x) { for (int r = 0; r < ROWS; r++) for (int j = 0; j < COUNT; j++) { int k = index[r * COUNT + j]; if (k >= COLUMNS) k = COLUMNS - 1; out[r * COUNT + j] = k >= 0 && k < COLUMNS ? x[r * COLUMNS + k] : 0.0f; } }

//! wrong | indices | Without their sign. Shows where one is below 0.
void absolute(float *out, const int *index, const float *x) { for (int r = 0; r < ROWS; r++) for (int j = 0; j < COUNT; j++) { int k = index[r * COUNT + j]; if (k < 0) k = -k; out[r * COUNT + j] = k >= 0 && k < COLUMNS ? x[r * COLUMNS + k] : 0.0f; } }

//! wrong | indices | Modulo the columns. Shows where one is too large.
void modulo(float *out, const int *index, const float *x) { for (int r = 0; r < ROWS; r++) for (int j = 0; j < COUNT; j++) { int k = index[r * COUNT + j]; if (k >= 0) k %= COLUMNS; out[r * COUNT + j] = k >= 0 && k < COLUMNS ? x[r * COLUMNS + k] : 0.0f; } }
