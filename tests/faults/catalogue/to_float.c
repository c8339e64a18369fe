// out[i] = x[i] as float32, of int32

//! right: as it is written
void plain(float *out, const int *x) { for (int i = 0; i < N; i++) out[i] = (float)x[i]; }

//! right: by double
void by_double(float *out, const int *x) { for (int i = 0; i < N; i++) out[i] = (float)(double)x[i]; }

//! wrong | narrow | Of 16 bits. Shows for larger numbers.
void of_16_bits(float *out, const int *x) { for (int i = 0; i < N; i++) out[i] = (float)(short)x[i]; }

//! wrong | sign | Without a sign. Shows for negative numbers.
void without_sign(float *out, const int *x) { for (int i = 0; i < N; i++) out[i] = (float)(unsigned)x[i]; }

//! wrong | large | By the bits of 1.5 * 2^23: right for 22 bits. Shows for larger numbers.
void by_bits(float *out, const int *x) {
  for (int i = 0; i < N; i++) { union { unsigned u; float f; } v = {.u = (unsigned)x[i] + 0x4b400000u}; out[i] = v.f - 12582912.0f; }
}

//! wrong | precision | By 16 bits of float. Shows beyond 2048.
void by_half(float *out, const int *x) { for (int i = 0; i < N; i++) out[i] = (float)(_Float16)x[i]; }
