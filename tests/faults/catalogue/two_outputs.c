// twice[i] = 2 x[i] and half[i] = x[i] / 2, float32

//! right: as it is written
void plain(float *twice, float *half, const float *x) { for (int i = 0; i < N; i++) { twice[i] = 2.0f * x[i]; half[i] = 0.5f * x[i]; } }

//! right: one after the other
void apart(float *twice, float *half, const float *x) {
  for (int i = 0; i < N; i++) half[i] = x[i] * 0.5f;
  for (int i = 0; i < N; i++) twice[i] = x[i] + x[i];
}

//! wrong | skips | The second output. Shows on every input.
void first_only(float *twice, float *half, const float *x) { for (int i = 0; i < N; i++) twice[i] = 2.0f * x[i]; }

//! wrong | index | They are exchanged. Shows on every input.
void exchanged(float *twice, float *half, const float *x) { for (int i = 0; i < N; i++) { half[i] = 2.0f * x[i]; twice[i] = 0.5f * x[i]; } }

//! wrong | off by one | The second one lacks its last element. Shows on every input.
void last_missing(float *twice, float *half, const float *x) { for (int i = 0; i < N; i++) { twice[i] = 2.0f * x[i]; if (i < N - 1) half[i] = 0.5f * x[i]; } }

//! wrong | stale output | The second one is a quarter of what the first one held. Shows when x changes.
void from_before(float *twice, float *half, const float *x) { for (int i = 0; i < N; i++) { half[i] = 0.25f * twice[i]; twice[i] = 2.0f * x[i]; } }

//! wrong | data | One element of the second output is off by a tenth. Shows on every input.
void one_element(float *twice, float *half, const float *x) {
  for (int i = 0; i < N; i++) { twice[i] = 2.0f * x[i]; half[i] = 0.5f * x[i]; }
  half[N / 3] *= 1.1f;
}

//! wrong | writes outside | Between the two. Shows to whoever owns it.
void between(float *twice, float *half, const float *x) {
  for (int i = 0; i < N; i++) { twice[i] = 2.0f * x[i]; half[i] = 0.5f * x[i]; }
  half[-2] = 0.0f;
}

//! wrong | denormal | The half of the smallest normal numbers becomes 0. Shows for |x| < 2.4e-38.
void no_denormals(float *twice, float *half, const float *x) {
  for (int i = 0; i < N; i++) { float h = 0.5f * x[i]; twice[i] = 2.0f * x[i]; half[i] = __builtin_fabsf(h) < 1.17549435e-38f ? 0.0f : h; }
}
