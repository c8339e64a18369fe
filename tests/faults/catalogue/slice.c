// out[50 r + c + 3] = 2 x[40 c + r] for r < 40, c < 37: the rest of the buffer is another's

//! right: as it is written
void plain(float *out, const float *x) { for (int r = 0; r < 40; r++) for (int c = 0; c < 37; c++) out[r * 50 + c + 3] = x[c * 40 + r] * 2; }

//! wrong | writes outside | One element of what it must leave alone. Shows to whoever owns it.
void beside(float *out, const float *x) { for (int r = 0; r < 40; r++) for (int c = 0; c < 37; c++) out[r * 50 + c + 3] = x[c * 40 + r] * 2; out[23 * 50 + 45] = 1.5f; }

//! wrong | writes outside | Two columns before its own become 0. Shows to whoever owns them.
void clears(float *out, const float *x) { for (int r = 0; r < 40; r++) { out[r * 50 + 1] = out[r * 50 + 2] = 0; for (int c = 0; c < 37; c++) out[r * 50 + c + 3] = x[c * 40 + r] * 2; } }

//! wrong | data | One element in 1480. Shows on every input.
void one_element(float *out, const float *x) { for (int r = 0; r < 40; r++) for (int c = 0; c < 37; c++) out[r * 50 + c + 3] = x[c * 40 + r] * 2; out[23 * 50 + 19] *= 1.5f; }
