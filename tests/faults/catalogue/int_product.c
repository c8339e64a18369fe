// out[i] = a[i] * b[i] + 3, int32, which wraps around

//! right: without signs
void plain(int *out, const int *a, const int *b) { for (int i = 0; i < N; i++) out[i] = (int)((unsigned)a[i] * (unsigned)b[i] + 3u); }

//! right: in 64 bits, cut at the end
void in_64_bits(int *out, const int *a, const int *b) { for (int i = 0; i < N; i++) out[i] = (int)(unsigned)(unsigned long long)((long long)a[i] * b[i] + 3); }

//! wrong | narrow | In float32. Shows beyond 24 bits.
void in_float(int *out, const int *a, const int *b) {
  for (int i = 0; i < N; i++) out[i] = (int)(unsigned)((unsigned long long)(long long)((float)a[i] * (float)b[i]) + 3u);
}

//! wrong | narrow | In double. Shows beyond 53 bits.
void in_double(int *out, const int *a, const int *b) {
  for (int i = 0; i < N; i++) out[i] = (int)(unsigned)((unsigned long long)(long long)((double)a[i] * (double)b[i]) + 3u);
}

//! wrong | narrow | Factors of 16 bits. Shows for larger ones.
void from_16_bits(int *out, const int *a, const int *b) { for (int i = 0; i < N; i++) out[i] = (short)a[i] * (short)b[i] + 3; }

//! wrong | narrow | Factors of 24 bits. Shows for larger ones.
void from_24_bits(int *out, const int *a, const int *b) {
  for (int i = 0; i < N; i++) out[i] = (int)((unsigned)((int)((unsigned)a[i] << 8) >> 8) * (unsigned)((int)((unsigned)b[i] << 8) >> 8) + 3u);
}

//! wrong | saturates | Stops at the largest and the smallest number. Shows where a product overflows.
void saturates(int *out, const int *a, const int *b) {
  for (int i = 0; i < N; i++) {
    long long p = (long long)a[i] * b[i] + 3;
    out[i] = (int)(p > 2147483647LL ? 2147483647LL : p < -2147483648LL ? -2147483648LL : p);
  }
}

//! wrong | sign | The factors' signs are lost. Shows where one of two is negative.
void without_sign(int *out, const int *a, const int *b) {
  for (int i = 0; i < N; i++) out[i] = (int)((unsigned)__builtin_abs(a[i]) * (unsigned)__builtin_abs(b[i]) + 3u);
}

//! wrong | off by one | Adds 3 to all but the last. Shows on every input.
void last_element(int *out, const int *a, const int *b) { for (int i = 0; i < N; i++) out[i] = (int)((unsigned)a[i] * (unsigned)b[i] + (i < N - 1 ? 3u : 0u)); }
