// out[i] = a[i] + b[i], int64
typedef long long i64;
typedef unsigned long long u64;

//! right: without signs
void plain(i64 *out, const i64 *a, const i64 *b) { for (int i = 0; i < N; i++) out[i] = (i64)((u64)a[i] + (u64)b[i]); }

//! wrong | narrow | In 32 bits. Shows for larger numbers.
void in_32_bits(i64 *out, const i64 *a, const i64 *b) { for (int i = 0; i < N; i++) out[i] = (int)((unsigned)a[i] + (unsigned)b[i]); }

//! wrong | narrow | In double. Shows beyond 53 bits.
void in_double(i64 *out, const i64 *a, const i64 *b) { for (int i = 0; i < N; i++) out[i] = (i64)(__int128)((double)a[i] + (double)b[i]); }

//! wrong | saturates | Stops at the largest and the smallest number. Shows where a sum overflows.
void saturates(i64 *out, const i64 *a, const i64 *b) {
  for (int i = 0; i < N; i++) {
    __int128 s = (__int128)a[i] + b[i], most = 9223372036854775807LL;
    out[i] = (i64)(s > most ? most : s < -most - 1 ? -most - 1 : s);
  }
}

//! wrong | carried over | The halves are added apart, and nothing is carried. Shows where the lower ones overflow.
void no_carry(i64 *out, const i64 *a, const i64 *b) {
  for (int i = 0; i < N; i++) {
    unsigned low = (unsigned)a[i] + (unsigned)b[i], high = (unsigned)((u64)a[i] >> 32) + (unsigned)((u64)b[i] >> 32);
    out[i] = (i64)((u64)high << 32 | low);
  }
}
