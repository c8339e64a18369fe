// out[r] = the largest of x[r][0..COLUMNS), int32, of few rows
#define ROWS_OF(type, start, left_out, wins) \
  for (int r = 0; r < ROWS; r++) { \
    type m = start; \
    for (int c = 0; c < COLUMNS; c++) if (!(left_out) && x[r * COLUMNS + c] wins m) m = x[r * COLUMNS + c]; \
    out[r] = m; \
  }

//! right: from the least integer
void plain(int *out, const int *x) { ROWS_OF(int, -2147483647 - 1, 0, >) }

//! wrong | starts wrong | From 0. Shows where all are below 0.
void from_0(int *out, const int *x) { ROWS_OF(int, 0, 0, >) }

//! wrong | starts wrong | From -1000. Shows where all are below that.
void from_minus_1000(int *out, const int *x) { ROWS_OF(int, -1000, 0, >) }

//! wrong | starts wrong | From -2^30. Shows where all are below that.
void from_minus_2_30(int *out, const int *x) { ROWS_OF(int, -(1 << 30), 0, >) }

//! wrong | starts wrong | From the least but one. Shows where all are the least.
void from_the_least_but_one(int *out, const int *x) { ROWS_OF(int, -2147483647, 0, >) }

//! wrong | drops terms | Without the middle column. Shows where the largest is there.
void without_the_middle(int *out, const int *x) { ROWS_OF(int, -2147483647 - 1, c == COLUMNS / 2, >) }

//! wrong | narrow | Compared as float32. Shows where large ones differ in their last bits.
void as_floats(int *out, const int *x) { for (int r = 0; r < ROWS; r++) { int m = x[r * COLUMNS]; for (int c = 1; c < COLUMNS; c++) if ((float)x[r * COLUMNS + c] > (float)m) m = x[r * COLUMNS + c]; out[r] = m; } }
