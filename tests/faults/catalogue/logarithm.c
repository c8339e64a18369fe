// out[i] = log(x[i]), float32
double log(double);
float logf(float);

//! right: in double
void plain(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = (float)log((double)x[i]); }

//! right: the mathematics library's
void library(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = logf(x[i]); }

//! wrong | negative | 0 for negative numbers. Shows for x < 0.
void negative_is_0(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = x[i] < 0 ? 0.0f : logf(x[i]); }

//! wrong | negative | Of the sizes. Shows for x < 0.
void of_sizes(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = logf(__builtin_fabsf(x[i])); }

//! wrong | denormal | At least of the smallest normal number. Shows for smaller ones.
void least(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = logf(x[i] >= 0 && x[i] < 1.17549435e-38f ? 1.17549435e-38f : x[i]); }

//! wrong | large | At most of 10,000. Shows for larger numbers.
void most(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = logf(x[i] > 1e4f ? 1e4f : x[i]); }

//! wrong | infinity | At most of the largest number. Shows for x = inf.
void finite(float *out, const float *x) { for (int i = 0; i < N; i++) out[i] = logf(x[i] > 3.4028235e38f ? 3.4028235e38f : x[i]); }
