// out[i][j] = the largest of a window of 4 x 4, float32: a few windows

//! right: from -inf
void plain(float *out, const float *x) { for (int i = 0; i < H / 4; i++) for (int j = 0; j < W / 4; j++) { float m = -__builtin_inff(); for (int a = 0; a < 4; a++) for (int b = 0; b < 4; b++) { float v = x[(4 * i + a) * W + 4 * j + b]; if (!(0) && v > m) m = v; } out[i * (W / 4) + j] = m; } }

//! wrong | starts wrong | From -1e4. Shows where a whole window is below that.
void from_minus_1e4(float *out, const float *x) { for (int i = 0; i < H / 4; i++) for (int j = 0; j < W / 4; j++) { float m = -1e4f; for (int a = 0; a < 4; a++) for (int b = 0; b < 4; b++) { float v = x[(4 * i + a) * W + 4 * j + b]; if (!(0) && v > m) m = v; } out[i * (W / 4) + j] = m; } }

//! wrong | starts wrong | From -1e30. Shows where a whole window is below that.
void from_minus_1e30(float *out, const float *x) { for (int i = 0; i < H / 4; i++) for (int j = 0; j < W / 4; j++) { float m = -1e30f; for (int a = 0; a < 4; a++) for (int b = 0; b < 4; b++) { float v = x[(4 * i + a) * W + 4 * j + b]; if (!(0) && v > m) m = v; } out[i * (W / 4) + j] = m; } }

//! wrong | drops terms | Without one of the window. Shows where the largest is there.
void without_one(float *out, const float *x) { for (int i = 0; i < H / 4; i++) for (int j = 0; j < W / 4; j++) { float m = -__builtin_inff(); for (int a = 0; a < 4; a++) for (int b = 0; b < 4; b++) { float v = x[(4 * i + a) * W + 4 * j + b]; if (!(a == 2 && b == 1) && v > m) m = v; } out[i * (W / 4) + j] = m; } }
