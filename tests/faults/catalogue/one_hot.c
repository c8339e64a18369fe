// out[i][j] = whether index[i] is j: int32

//! right: as it is written
void plain(int *out, const int *index) { for (int i = 0; i < COUNT; i++) for (int j = 0; j < CLASSES; j++) { int k = index[i];  out[i * CLASSES + j] = k == j; } }

//! right: zeros, and then a one where there is such a class
void ones(int *out, const int *index) { for (int i = 0; i < COUNT * CLASSES; i++) out[i] = 0; for (int i = 0; i < COUNT; i++) if (index[i] >= 0 && index[i] < CLASSES) out[i * CLASSES + index[i]] = 1; }

//! wrong | indices | Negative ones count from the end. Shows where one is below 0.
void from_the_end(int *out, const int *index) { for (int i = 0; i < COUNT; i++) for (int j = 0; j < CLASSES; j++) { int k = index[i]; if (k < 0) k += CLASSES; out[i * CLASSES + j] = k == j; } }

//! wrong | indices | What is too large is the last class. Shows where one is.
void to_the_last(int *out, const int *index) { for (int i = 0; i < COUNT; i++) for (int j = 0; j < CLASSES; j++) { int k = index[i]; if (k >= CLASSES) k = CLASSES - 1; out[i * CLASSES + j] = k == j; } }

//! wrong | indices | Of 8 bits. Shows where one is beyond them.
void in_8_bits(int *out, const int *index) { for (int i = 0; i < COUNT; i++) for (int j = 0; j < CLASSES; j++) { int k = index[i]; k = (signed char)k; out[i * CLASSES + j] = k == j; } }
