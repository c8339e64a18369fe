// out[i] = y[i] where x[i] > 0.5, else -1, float32

//! right: as it is written
void plain(float *out, const float *x, const float *y) { for (int i = 0; i < N; i++) out[i] = x[i] > 0.5f ? y[i] : -1.0f; }

//! wrong | ties | Also at 0.5 itself. Shows there.
void not_below(float *out, const float *x, const float *y) { for (int i = 0; i < N; i++) out[i] = x[i] >= 0.5f ? y[i] : -1.0f; }

//! wrong | ties | The next number above 0.5 is not above. Shows there.
void next(float *out, const float *x, const float *y) { for (int i = 0; i < N; i++) out[i] = x[i] > 0.50000006f ? y[i] : -1.0f; }

//! wrong | negative | Compares sizes. Shows for x < -0.5.
void sizes(float *out, const float *x, const float *y) { for (int i = 0; i < N; i++) out[i] = __builtin_fabsf(x[i]) > 0.5f ? y[i] : -1.0f; }
