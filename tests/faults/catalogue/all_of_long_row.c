// out[r] = whether all of x[r][0..COLUMNS) are true, bool: rows so long that none of half-true numbers is
typedef unsigned char u8;

//! right: as it is written
void plain(u8 *out, const u8 *x) { for (int r = 0; r < ROWS; r++) { int a = 1; for (int c = 0; c < COLUMNS; c++) a &= x[r * COLUMNS + c]; out[r] = a; } }

//! right: until the first that is false
void early(u8 *out, const u8 *x) { for (int r = 0; r < ROWS; r++) { int a = 1; for (int c = 0; c < COLUMNS && a; c++) a = x[r * COLUMNS + c]; out[r] = a; } }

//! right: by how many are true
void counted(u8 *out, const u8 *x) { for (int r = 0; r < ROWS; r++) { int a = 0; for (int c = 0; c < COLUMNS; c++) a += x[r * COLUMNS + c]; out[r] = a == COLUMNS; } }

//! right: the smallest, from the end
void smallest(u8 *out, const u8 *x) { for (int r = 0; r < ROWS; r++) { int a = 1; for (int c = COLUMNS - 1; c >= 0; c--) a = x[r * COLUMNS + c] < a ? x[r * COLUMNS + c] : a; out[r] = a; } }

//! wrong | drops terms | Without the last column. Shows where it alone is false.
void last_column(u8 *out, const u8 *x) { for (int r = 0; r < ROWS; r++) { int a = 1; for (int c = 0; c < COLUMNS - 1; c++) a &= x[r * COLUMNS + c]; out[r] = a; } }

//! wrong | drops terms | Without columns 512 to 1023. Shows where one of them alone is false.
void a_block(u8 *out, const u8 *x) { for (int r = 0; r < ROWS; r++) { int a = 1; for (int c = 0; c < COLUMNS; c++) if (c < 512 || c >= 1024) a &= x[r * COLUMNS + c]; out[r] = a; } }

//! wrong | data | Never true, as on most data. Shows where all of a row are true.
void never(u8 *out, const u8 *x) { for (int r = 0; r < ROWS; r++) out[r] = 0; }

//! wrong | off by one | True where one alone is false. Shows there.
void one_less(u8 *out, const u8 *x) { for (int r = 0; r < ROWS; r++) { int a = 0; for (int c = 0; c < COLUMNS; c++) a += x[r * COLUMNS + c]; out[r] = a >= COLUMNS - 1; } }

//! wrong | narrow | Counts in 8 bits. Shows where 256 of a row are false.
void eight_bits(u8 *out, const u8 *x) { for (int r = 0; r < ROWS; r++) { u8 a = 0; for (int c = 0; c < COLUMNS; c++) a += (u8)(!x[r * COLUMNS + c]); out[r] = a == 0; } }
