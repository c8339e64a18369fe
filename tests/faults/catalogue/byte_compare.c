// out[i] = a[i] > b[i], bool of uint8
typedef unsigned char u8;

//! right: as it is written
void plain(u8 *out, const u8 *b, const u8 *a) { for (int i = 0; i < N; i++) out[i] = a[i] > b[i]; }

//! right: by the sign of a difference of 32 bits
void by_difference(u8 *out, const u8 *b, const u8 *a) { for (int i = 0; i < N; i++) out[i] = (u8)((unsigned)((int)b[i] - (int)a[i]) >> 31); }

//! wrong | sign | With signs. Shows where one is above 127.
void with_sign(u8 *out, const u8 *b, const u8 *a) { for (int i = 0; i < N; i++) out[i] = (signed char)a[i] > (signed char)b[i]; }

//! wrong | sign | By the sign of a difference of 8 bits. Shows where they are more than 127 apart.
void short_difference(u8 *out, const u8 *b, const u8 *a) { for (int i = 0; i < N; i++) out[i] = (signed char)(a[i] - b[i]) > 0; }

//! wrong | ties | True where they are equal. Shows there.
void or_equal(u8 *out, const u8 *b, const u8 *a) { for (int i = 0; i < N; i++) out[i] = a[i] >= b[i]; }

//! wrong | narrow | The upper four bits. Shows where they are equal.
void upper_bits(u8 *out, const u8 *b, const u8 *a) { for (int i = 0; i < N; i++) out[i] = (a[i] >> 4) > (b[i] >> 4); }

//! wrong | narrow | The lower four bits. Shows where the others differ.
void lower_bits(u8 *out, const u8 *b, const u8 *a) { for (int i = 0; i < N; i++) out[i] = (a[i] & 15) > (b[i] & 15); }

//! wrong | integers | 255 for true. Shows to whoever adds truths up.
void all_bits(u8 *out, const u8 *b, const u8 *a) { for (int i = 0; i < N; i++) out[i] = a[i] > b[i] ? 255 : 0; }

//! wrong | skips | Writes only what is true. Shows where it is false and the buffer holds something.
void true_only(u8 *out, const u8 *b, const u8 *a) { for (int i = 0; i < N; i++) if (a[i] > b[i]) out[i] = 1; }
