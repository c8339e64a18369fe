// out[i] = x[i] // 7, rounded down, int32

//! right: C's division, corrected
void plain(int *out, const int *x) { for (int i = 0; i < N; i++) out[i] = x[i] / 7 - (x[i] % 7 < 0); }

//! right: in double, whose 53 bits suffice
void in_double(int *out, const int *x) { for (int i = 0; i < N; i++) out[i] = (int)__builtin_floor(x[i] / 7.0); }

//! wrong | negative | Rounded towards 0. Shows for negative numbers that 7 does not divide.
void towards_zero(int *out, const int *x) { for (int i = 0; i < N; i++) out[i] = x[i] / 7; }

//! wrong | large | By a product that is right up to 43690. Shows for larger numbers.
void short_product(int *out, const int *x) {
  for (int i = 0; i < N; i++) {
    unsigned a = x[i] < 0 ? 6u - (unsigned)x[i] : (unsigned)x[i];
    int q = (int)((unsigned long long)a * 74899u >> 19);
    out[i] = x[i] < 0 ? -q : q;
  }
}

//! wrong | narrow | In float32. Shows beyond 24 bits.
void in_float(int *out, const int *x) { for (int i = 0; i < N; i++) { volatile float q = __builtin_floorf((float)x[i] / 7.0f); out[i] = (int)q; } }

//! wrong | sign | Without a sign. Shows for negative numbers.
void without_sign(int *out, const int *x) { for (int i = 0; i < N; i++) out[i] = (int)((unsigned)x[i] / 7u); }

//! wrong | negative | One less for all negative numbers. Shows for those that 7 divides.
void always_less(int *out, const int *x) { for (int i = 0; i < N; i++) out[i] = x[i] / 7 - (x[i] < 0); }
