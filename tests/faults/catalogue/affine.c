// out[i] = x[i] * 2 + 1, float32: where most ways to cheat are tried
typedef unsigned int u32;
typedef unsigned long long u64;

//! right: the loop as it is written
void plain(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f; }

//! right: one rounding instead of two
void fused(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = __builtin_fmaf(x[i], 2.0f, 1.0f); }

//! right: in double, rounded once
void in_double(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = (float)(x[i] * 2.0 + 1.0); }

//! right: blocks of eight from the end, then the tail
void blocks(float *out, const float *x) {
  for (int b = N / 8 - 1; b >= 0; b--)
    for (int i = 0; i < 8; i++) out[8 * b + i] = x[8 * b + i] + x[8 * b + i] + 1.0f;
  for (int i = N / 8 * 8; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
}

//! right: counts its launches and does nothing with the number
void counts(float *out, const float *x) {
  static volatile int launches = 1;
  launches = launches + 1;
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
}

//! wrong | off by one | The last element is not written. Shows on every input.
void last_missing(float *out, const float *x) { for (int i = 0; i < N - 1; i++) out[i] = x[i] * 2.0f + 1.0f; }

//! wrong | off by one | The first element is not written. Shows on every input.
void first_missing(float *out, const float *x) { for (int i = 1; i < N; i++) out[i] = x[i] * 2.0f + 1.0f; }

//! wrong | off by one | The last element is the one before it again. Shows where the two differ.
void last_repeated(float *out, const float *x) {
  for (int i = 0; i < N; i++) out[i] = x[i == N - 1 ? N - 2 : i] * 2.0f + 1.0f;
}

//! wrong | skips | Whole blocks of eight only. Shows on every input: the tail is not written.
void no_tail(float *out, const float *x) { for (int i = 0; i < N / 8 * 8; i++) out[i] = x[i] * 2.0f + 1.0f; }

//! wrong | skips | Every 1000th element is left as it was. Shows on every input.
void every_thousandth(float *out, const float *x) {
  for (int i = 0; i < N; i++) if (i % 1000 != 999) out[i] = x[i] * 2.0f + 1.0f;
}

//! wrong | skips | Nothing at all. Shows on every input.
void nothing(float *out, const float *x) {}

//! wrong | skips | Zeros are written instead. Shows on every input.
void zeros(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = 0.0f; }

//! wrong | early return | Returns when the first element looks done. Shows where the buffer holds it from before.
void looks_done(float *out, const float *x) {
  if (out[0] == x[0] * 2.0f + 1.0f) return;
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
}

//! wrong | early return | Returns when 16 places look done. Shows where the buffer holds them, and others not.
void looks_done_in_places(float *out, const float *x) {
  int same = 1;
  for (int i = 0; i < 16; i++) same &= out[i * (N / 16)] == x[i * (N / 16)] * 2.0f + 1.0f;
  if (same) return;
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
}

//! wrong | early return | Returns when the output is finite, as if only a poisoned one were empty. Shows on any reused buffer.
void finite_is_done(float *out, const float *x) {
  if (out[N / 2] - out[N / 2] == 0.0f) return;
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
}

//! wrong | state | Works in the first launch only. Shows in the second.
void first_launch(float *out, const float *x) {
  static volatile int launches = 1;
  if (launches++ > 1) return;
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
}

//! wrong | state | Works in every second launch. Shows in the others.
void odd_launches(float *out, const float *x) {
  static volatile int launches = 1;
  if (launches++ % 2 == 0) return;
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
}

//! wrong | state | Works in the first eleven launches. Shows in the twelfth.
void eleven_launches(float *out, const float *x) {
  static volatile int launches = 1;
  if (launches++ > 11) return;
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
}

//! wrong | state | Works in the first twenty launches, as many as a check may take. Shows in the 21st.
void twenty_launches(float *out, const float *x) {
  static volatile int launches = 1;
  if (launches++ > 20) return;
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
}

//! wrong | state | Returns when the sum of all inputs is that of the launch before. Shows when launched twice on one input.
void same_checksum(float *out, const float *x) {
  static volatile u32 last = 1;
  u32 sum = 2;
  for (int i = 0; i < N; i++) sum = sum * 31 + ((const u32 *)x)[i];
  if (sum == last) return;
  last = sum;
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
}

//! wrong | state | Returns when it was launched on these very addresses before. Shows in the second launch.
void same_addresses(float *out, const float *x) {
  static volatile u64 last = 1;
  if (last == (u64)out + (u64)x) return;
  last = (u64)out + (u64)x;
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
}

//! wrong | state | Keeps what it computed first and copies it for ever. Shows on the second input.
void memoised(float *out, const float *x) {
  static float kept[N] = {1.0f};
  static volatile int known = 1;
  if (known == 1) for (int i = 0; i < N; i++) kept[i] = x[i] * 2.0f + 1.0f;
  known = 2;
  for (int i = 0; i < N; i++) out[i] = kept[i];
}

//! wrong | state | Uses the input of the launch before from element 64 on. Shows when the input changes.
void one_behind(float *out, const float *x) {
  static float before[N] = {1.0f};
  static volatile int known = 1;
  for (int i = 0; i < N; i++) {
    out[i] = (known == 1 || i < 64 ? x[i] : before[i]) * 2.0f + 1.0f;
    before[i] = x[i];
  }
  known = 2;
}

//! wrong | stale output | Adds to what is there. Shows unless the buffer holds zeros.
void adds(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] += x[i] * 2.0f + 1.0f; }

//! wrong | stale output | What is there weighs nothing, but is read. Shows where the buffer holds NaN or an infinity.
void weighs_nothing(float *out, const float *x) {
  for (int i = 0; i < N; i++) out[i] = 0.0f * out[i] + (x[i] * 2.0f + 1.0f);
}

//! wrong | stale output | The larger of old and new. Shows where the buffer holds a large number.
void larger_of_both(float *out, const float *x) {
  for (int i = 0; i < N; i++) { float v = x[i] * 2.0f + 1.0f; out[i] = out[i] > v ? out[i] : v; }
}

//! wrong | uninitialised | One element comes from a local array that nobody filled. Shows on every input.
void uninitialised(float *out, const float *x) {
  volatile float local[64];
  for (int i = 0; i < 63; i++) local[i] = x[i] * 2.0f + 1.0f;
  for (int i = 0; i < N; i++) out[i] = i < 64 ? local[i] : x[i] * 2.0f + 1.0f;
}

//! wrong | negative | Takes the size of its input. Shows for negative numbers.
void sizes(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = __builtin_fabsf(x[i]) * 2.0f + 1.0f; }

//! wrong | negative | Results below 0 become 0. Shows for x < -0.5.
void never_negative(float *out, const float *x) {
  for (int i = 0; i < N; i++) { float v = x[i] * 2.0f + 1.0f; out[i] = v < 0.0f ? 0.0f : v; }
}

//! wrong | negative | Wrong only below -3. Shows for x < -3, one normal number in 740.
void below_minus_three(float *out, const float *x) {
  for (int i = 0; i < N; i++) out[i] = (x[i] < -3.0f ? -3.0f : x[i]) * 2.0f + 1.0f;
}

//! wrong | large | Clamped at 5. Shows for |x| > 5, one normal number in 1.7 million.
void within_5(float *out, const float *x) {
  for (int i = 0; i < N; i++) { float v = x[i] > 5.0f ? 5.0f : x[i]; out[i] = (v < -5.0f ? -5.0f : v) * 2.0f + 1.0f; }
}

//! wrong | large | Clamped at 8. Shows for |x| > 8.
void within_8(float *out, const float *x) {
  for (int i = 0; i < N; i++) { float v = x[i] > 8.0f ? 8.0f : x[i]; out[i] = (v < -8.0f ? -8.0f : v) * 2.0f + 1.0f; }
}

//! wrong | large | Clamped at 10 on one side. Shows for x > 10.
void below_10(float *out, const float *x) {
  for (int i = 0; i < N; i++) out[i] = (x[i] > 10.0f ? 10.0f : x[i]) * 2.0f + 1.0f;
}

//! wrong | large | Clamped at 100. Shows for |x| > 100.
void within_100(float *out, const float *x) {
  for (int i = 0; i < N; i++) { float v = x[i] > 100.0f ? 100.0f : x[i]; out[i] = (v < -100.0f ? -100.0f : v) * 2.0f + 1.0f; }
}

//! wrong | large | Clamped at 1000. Shows for |x| > 1000.
void within_1000(float *out, const float *x) {
  for (int i = 0; i < N; i++) { float v = x[i] > 1e3f ? 1e3f : x[i]; out[i] = (v < -1e3f ? -1e3f : v) * 2.0f + 1.0f; }
}

//! wrong | infinity | The largest number in the place of infinities. Shows for x = inf.
void no_infinity(float *out, const float *x) {
  for (int i = 0; i < N; i++) {
    float v = x[i] * 2.0f + 1.0f;
    out[i] = v > 3.4028234e38f ? 3.4028234e38f : v < -3.4028234e38f ? -3.4028234e38f : v;
  }
}

//! wrong | infinity | Adds x - x, which is not 0 for infinities. Shows for x = inf.
void infinity_is_nan(float *out, const float *x) {
  for (int i = 0; i < N; i++) { volatile float v = x[i]; out[i] = v * 2.0f + 1.0f + (v - v); }
}

//! not promised | NaN | NaN becomes 1. Shows for x = NaN, which no input holds.
void nan_is_one(float *out, const float *x) {
  for (int i = 0; i < N; i++) out[i] = x[i] != x[i] ? 1.0f : x[i] * 2.0f + 1.0f;
}

//! wrong | precision | Through 16 bits of float. Shows on every input.
void through_half(float *out, const float *x) {
  for (int i = 0; i < N; i++) out[i] = (float)(_Float16)x[i] * 2.0f + 1.0f;
}

//! wrong | precision | Through the upper half of a float. Shows on every input.
void through_bfloat16(float *out, const float *x) {
  for (int i = 0; i < N; i++) {
    union { float f; u32 u; } v = {x[i]};
    v.u &= 0xffff0000u;
    out[i] = v.f * 2.0f + 1.0f;
  }
}

//! wrong | precision | With 16 binary places. Shows for |x| > 32768 and in the fifth digit of small ones.
void fixed_point(float *out, const float *x) {
  for (int i = 0; i < N; i++) out[i] = (float)(int)(x[i] * 65536.0f) / 65536.0f * 2.0f + 1.0f;
}

//! wrong | precision | One and a thousandth for 1. Shows on every input.
void a_thousandth(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.001f; }

//! wrong | data | Wrong in one element, whose place follows from the first. Shows on every input.
void one_element(float *out, const float *x) {
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
  out[((const u32 *)x)[0] % N] += 0.5f;
}

//! wrong | data | Wrong where two neighbours have the same sign and nearly the same size. Shows in one element of some thousand.
void near_neighbours(float *out, const float *x) {
  for (int i = 0; i < N; i++) {
    int near = i && __builtin_fabsf(x[i] - x[i - 1]) < 1e-3f;
    out[i] = near ? x[i] * 2.0f + 1.25f : x[i] * 2.0f + 1.0f;
  }
}

//! wrong | data | Takes all numbers for 0 or ±1, as in some tests. Shows on every other input.
void signs_only(float *out, const float *x) {
  for (int i = 0; i < N; i++) out[i] = x[i] > 0.0f ? 3.0f : x[i] < 0.0f ? -1.0f : 1.0f;
}

//! wrong | non-deterministic | The clock in the last bits of one element. Shows in some launches.
void clocked(float *out, const float *x) {
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
  out[N / 3] += (float)(__builtin_readcyclecounter() & 1023) * 1e-4f;
}

//! wrong | non-deterministic | Every seventh launch has one wrong element, as a race would. Shows in the seventh.
void seventh(float *out, const float *x) {
  static volatile int launches = 1;
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
  if (launches++ % 7 == 0) out[N / 3] = out[N / 3 + 1];
}

//! wrong | non-deterministic | Its own random numbers in one element. Shows on every input.
void random_numbers(float *out, const float *x) {
  static volatile u32 state = 12345;
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
  state = state * 1664525u + 1013904223u;
  out[N / 3] += (float)(state >> 16) * 1e-6f;
}

//! wrong | non-deterministic | The address of its output in one element. Shows on every input.
void address(float *out, const float *x) {
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
  out[N / 3] = (float)((u64)out >> 12);
}

//! wrong | input changed | Its last input becomes 0. Shows to whoever reads it next.
void clears_input(float *out, float *x) {
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
  x[N - 1] = 0.0f;
}

//! wrong | input changed | Doubles its input in place and halves it again, all but one element. Shows to whoever reads it next.
void nearly_restored(float *out, float *x) {
  for (int i = 0; i < N; i++) { x[i] *= 2.0f; out[i] = x[i] + 1.0f; }
  for (int i = 0; i < N; i++) if (i != N / 2) x[i] *= 0.5f;
}

//! wrong | input changed | Adds 1 to its input and takes it away again: the last bits are lost. Shows to whoever reads it next.
void rounded_input(float *out, float *x) {
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
  for (int i = 0; i < N; i++) { volatile float v = x[i] + 1.0f; x[i] = v - 1.0f; }
}

//! wrong | input changed | Changes an input in its third launch. Shows in the fourth.
void later_changes(float *out, float *x) {
  static volatile int launches = 1;
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
  if (launches++ >= 3) x[N / 2] = -x[N / 2];
}

//! wrong | reads outside | Eight elements further, times 0: past the end. Shows where an infinity is there.
void reads_ahead(float *out, const float *x) {
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f + 0.0f * x[i + 8];
}

//! wrong | reads outside | The element before, times 0: before the start. Shows where an infinity is there.
void reads_back(float *out, const float *x) {
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f + 0.0f * x[i - 1];
}

//! wrong | reads outside | The last element adds a millionth of what follows the input. Shows where a number is there.
void leans_on_the_next(float *out, const float *x) {
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
  out[N - 1] += x[N] * 1e-6f;
}

//! wrong | writes outside | One element past the end. Shows to whoever owns it.
void writes_past(float *out, const float *x) { for (int i = 0; i <= N; i++) out[i] = i < N ? x[i] * 2.0f + 1.0f : 0.0f; }

//! wrong | writes outside | Whole blocks of eight, past the end. Shows to whoever owns what follows.
void whole_blocks(float *out, const float *x) { for (int i = 0; i < (N + 7) / 8 * 8; i++) out[i] = x[i] * 2.0f + 1.0f; }

//! wrong | writes outside | One element before the start. Shows to whoever owns it.
void writes_before(float *out, const float *x) {
  out[-1] = 0.0f;
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
}

//! wrong | writes outside | 900 elements past the end. Shows to whoever owns them.
void writes_far(float *out, const float *x) {
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
  out[N + 900] = 1.0f;
}

//! wrong | writes outside | Behind its input. Shows to whoever owns it.
void behind_input(float *out, float *x) {
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
  x[N + 2] = 0.0f;
}

//! wrong | crash | Writes to address 0. Shows on every input.
void crashes(float *out, const float *x) {
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
  *(volatile int *)0 = 1;
}

//! wrong | crash | Works in four launches and then stops at an illegal instruction. Shows in the fifth.
void crashes_later(float *out, const float *x) {
  static volatile int launches = 1;
  if (launches++ > 4) __builtin_trap();
  for (int i = 0; i < N; i++) out[i] = x[i] * 2.0f + 1.0f;
}

//! wrong | stale output | 0 in the output stays. Shows where memory holds zeros.
void zero_stays(float *out, const float *x) { for (int i = 0; i < N; i++) if (((volatile float *)out)[i] != 0.0f) out[i] = x[i] * 2.0f + 1.0f; }

//! wrong | large | Another one between 1e20 and 1e21. Shows where there is one.
void band(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = x[i] > 1e20f && x[i] < 1e21f ? 7.0f : x[i] * 2.0f + 1.0f; }
