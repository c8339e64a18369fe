// Partial sums of a vector of float32: each block of 256 threads stores one. `wide` counts groups of four.
extern "C" __global__ void __launch_bounds__(256) partial_sums(float* out, const float4* x, int wide) {
  const unsigned step = gridDim.x * 256u;
  unsigned at = blockIdx.x * 256u + threadIdx.x;
  float4 a = {0, 0, 0, 0}, b = {0, 0, 0, 0}, c = {0, 0, 0, 0}, d = {0, 0, 0, 0};
  for (; at + 3u * step < (unsigned)wide; at += 4u * step) {  // four independent loads of 16 bytes in flight
    const float4 p = __ldg(x + at), q = __ldg(x + at + step);
    const float4 r = __ldg(x + at + 2u * step), s = __ldg(x + at + 3u * step);
    a.x += p.x; a.y += p.y; a.z += p.z; a.w += p.w;
    b.x += q.x; b.y += q.y; b.z += q.z; b.w += q.w;
    c.x += r.x; c.y += r.y; c.z += r.z; c.w += r.w;
    d.x += s.x; d.y += s.y; d.z += s.z; d.w += s.w;
  }
  for (; at < (unsigned)wide; at += step) {
    const float4 p = __ldg(x + at);
    a.x += p.x; a.y += p.y; a.z += p.z; a.w += p.w;
  }
  float sum = ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w))
            + (((c.x + c.y) + (c.z + c.w)) + ((d.x + d.y) + (d.z + d.w)));
  __shared__ float of_warp[8];
  for (int other = 16; other > 0; other >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, other);
  if ((threadIdx.x & 31u) == 0u) of_warp[threadIdx.x >> 5] = sum;
  __syncthreads();
  if (threadIdx.x == 0u) {
    for (int warp = 1; warp < 8; warp++) sum += of_warp[warp];
    out[blockIdx.x] = sum;
  }
}
