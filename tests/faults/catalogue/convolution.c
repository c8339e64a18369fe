// out[o][y][x] = sum over i, a, b of in[i][y + a - 1][x + b - 1] * w[o][i][a][b], with zeros around, float32
#define AT(p, i, y, x) p[((i) * H + (y)) * W + (x)]
#define INSIDE(y, x) ((y) >= 0 && (y) < H && (x) >= 0 && (x) < W)

//! right: as it is written
void plain(float *out, const float *in, const float *w) {
  for (int o = 0; o < O; o++) for (int y = 0; y < H; y++) for (int x = 0; x < W; x++) {
    float s = 0.0f;
    for (int i = 0; i < I; i++) for (int a = 0; a < 3; a++) for (int b = 0; b < 3; b++)
      if (INSIDE(y + a - 1, x + b - 1)) s += AT(in, i, y + a - 1, x + b - 1) * w[((o * I + i) * 3 + a) * 3 + b];
    AT(out, o, y, x) = s;
  }
}

//! right: on a copy with zeros around, the input's channels last
void padded(float *out, const float *in, const float *w) {
  float copy[I][H + 2][W + 2];
  for (int i = 0; i < I; i++) for (int y = 0; y < H + 2; y++) for (int x = 0; x < W + 2; x++)
    copy[i][y][x] = INSIDE(y - 1, x - 1) ? AT(in, i, y - 1, x - 1) : 0.0f;
  for (int o = 0; o < O; o++) for (int y = 0; y < H; y++) for (int x = 0; x < W; x++) {
    float s = 0.0f;
    for (int a = 0; a < 3; a++) for (int b = 0; b < 3; b++) for (int i = 0; i < I; i++)
      s = __builtin_fmaf(copy[i][y + a][x + b], w[((o * I + i) * 3 + a) * 3 + b], s);
    AT(out, o, y, x) = s;
  }
}

//! wrong | padding | The edges are repeated, not zeros. Shows along them.
void repeated(float *out, const float *in, const float *w) {
  for (int o = 0; o < O; o++) for (int y = 0; y < H; y++) for (int x = 0; x < W; x++) {
    float s = 0.0f;
    for (int i = 0; i < I; i++) for (int a = 0; a < 3; a++) for (int b = 0; b < 3; b++) {
      int u = y + a - 1, v = x + b - 1;
      u = u < 0 ? 0 : u >= H ? H - 1 : u, v = v < 0 ? 0 : v >= W ? W - 1 : v;
      s += AT(in, i, u, v) * w[((o * I + i) * 3 + a) * 3 + b];
    }
    AT(out, o, y, x) = s;
  }
}

//! wrong | padding | Beyond a row comes the next one. Shows along left and right edge.
void wraps(float *out, const float *in, const float *w) {
  for (int o = 0; o < O; o++) for (int y = 0; y < H; y++) for (int x = 0; x < W; x++) {
    float s = 0.0f;
    for (int i = 0; i < I; i++) for (int a = 0; a < 3; a++) for (int b = 0; b < 3; b++) {
      int at = (i * H + y + a - 1) * W + x + b - 1;
      if (y + a - 1 >= 0 && y + a - 1 < H && at >= 0 && at < I * H * W) s += in[at] * w[((o * I + i) * 3 + a) * 3 + b];
    }
    AT(out, o, y, x) = s;
  }
}

//! wrong | reads outside | What lies around counts with a weight of 0. Shows where an infinity or NaN is there.
void weighs_nothing(float *out, const float *in, const float *w) {
  for (int o = 0; o < O; o++) for (int y = 0; y < H; y++) for (int x = 0; x < W; x++) {
    float s = 0.0f;
    for (int i = 0; i < I; i++) for (int a = 0; a < 3; a++) for (int b = 0; b < 3; b++) {
      volatile float weight = INSIDE(y + a - 1, x + b - 1) ? w[((o * I + i) * 3 + a) * 3 + b] : 0.0f;
      s += AT(in, i, y + a - 1, x + b - 1) * weight;
    }
    AT(out, o, y, x) = s;
  }
}

//! wrong | index | The window is turned round. Shows unless it is symmetric.
void turned(float *out, const float *in, const float *w) {
  for (int o = 0; o < O; o++) for (int y = 0; y < H; y++) for (int x = 0; x < W; x++) {
    float s = 0.0f;
    for (int i = 0; i < I; i++) for (int a = 0; a < 3; a++) for (int b = 0; b < 3; b++)
      if (INSIDE(y + a - 1, x + b - 1)) s += AT(in, i, y + a - 1, x + b - 1) * w[((o * I + i) * 3 + 2 - a) * 3 + 2 - b];
    AT(out, o, y, x) = s;
  }
}

//! wrong | drops terms | The last channel of the input. Shows on every input.
void last_channel(float *out, const float *in, const float *w) {
  for (int o = 0; o < O; o++) for (int y = 0; y < H; y++) for (int x = 0; x < W; x++) {
    float s = 0.0f;
    for (int i = 0; i < I - 1; i++) for (int a = 0; a < 3; a++) for (int b = 0; b < 3; b++)
      if (INSIDE(y + a - 1, x + b - 1)) s += AT(in, i, y + a - 1, x + b - 1) * w[((o * I + i) * 3 + a) * 3 + b];
    AT(out, o, y, x) = s;
  }
}

//! wrong | drops terms | One corner of the window at one corner of the picture. Shows on every input, in O elements.
void corner(float *out, const float *in, const float *w) {
  for (int o = 0; o < O; o++) for (int y = 0; y < H; y++) for (int x = 0; x < W; x++) {
    float s = 0.0f;
    for (int i = 0; i < I; i++) for (int a = 0; a < 3; a++) for (int b = 0; b < 3; b++)
      if (INSIDE(y + a - 1, x + b - 1) && (y < H - 1 || x < W - 1 || a || b))
        s += AT(in, i, y + a - 1, x + b - 1) * w[((o * I + i) * 3 + a) * 3 + b];
    AT(out, o, y, x) = s;
  }
}

//! wrong | index | All outputs by the first one's window. Shows from the second channel on.
void first_window(float *out, const float *in, const float *w) {
  for (int o = 0; o < O; o++) for (int y = 0; y < H; y++) for (int x = 0; x < W; x++) {
    float s = 0.0f;
    for (int i = 0; i < I; i++) for (int a = 0; a < 3; a++) for (int b = 0; b < 3; b++)
      if (INSIDE(y + a - 1, x + b - 1)) s += AT(in, i, y + a - 1, x + b - 1) * w[(i * 3 + a) * 3 + b];
    AT(out, o, y, x) = s;
  }
}
