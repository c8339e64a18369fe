// out[7 i mod N] = 2 x[i], float32: an index that is no sum of strides

//! right: as it is written
void plain(float *out, const float *x) { for (int i = 0; i < N; i++) out[(int)(7LL * i % N)] = x[i] * 2; }

//! wrong | data | One element in 100,003. Shows on every input.
void one_element(float *out, const float *x) { for (int i = 0; i < N; i++) out[(int)(7LL * i % N)] = x[i] * 2; out[54321] *= 1.25f; }

//! wrong | data | Two elements are exchanged. Shows on every input.
void exchanged(float *out, const float *x) { for (int i = 0; i < N; i++) out[(int)(7LL * i % N)] = x[i] * 2; float t = out[777]; out[777] = out[88888]; out[88888] = t; }

//! wrong | skips | One element is not written. Shows where the buffer holds something.
void skipped(float *out, const float *x) { for (int i = 0; i < N; i++) if (i != 77777) out[(int)(7LL * i % N)] = x[i] * 2; }
