// Exact chains of S states that read one table each: one warp a chain, lane s = state s, everything in one launch.
// Compiled with S, AHEAD (sites read in advance) and BLOCKS (a multiprocessor). Numbers are scaled probabilities
// exp(theta / eps); every site is divided by the sum of the one before, z, which an idle lane computes as one more column
// of the table. Chains whose scale leaves the safe range get the value NaN, and are computed again elsewhere.
#define FULL 0xffffffffu
constexpr int WARPS = 8;
constexpr int PAD = 32;
constexpr REAL LOW = sizeof(REAL) == 4 ? REAL(1e-18) : REAL(1e-150), HIGH = REAL(1) / LOW;

struct alignas(16) Four { REAL x, y, z, w; };

__device__ __forceinline__ void load4(const REAL* p, REAL* v) {
  Four q = *reinterpret_cast<const Four*>(p);
  v[0] = q.x; v[1] = q.y; v[2] = q.z; v[3] = q.w;
}

// sum_s v[s] c[s] over the states in shared memory.
__device__ __forceinline__ REAL dot(const REAL* buf, const REAL* c) {
  REAL m0 = 0, m1 = 0, m2 = 0, m3 = 0;
#pragma unroll
  for (int s = 0; s + 3 < S; s += 4) {
    REAL v[4]; load4(buf + s, v);
    m0 += v[0] * c[s]; m1 += v[1] * c[s + 1]; m2 += v[2] * c[s + 2]; m3 += v[3] * c[s + 3];
  }
#pragma unroll
  for (int s = S / 4 * 4; s < S; s++) m0 += buf[s] * c[s];
  return (m0 + m1) + (m2 + m3);
}

__device__ __forceinline__ REAL total(REAL x) {
#pragma unroll
  for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(FULL, x, o);
  return x;
}

// alpha: workspace of PAD numbers a site. Chain b has the states from first[b] on, length[b] sites, the table at
// table_at[b], and adds nothing else to the marginals at mu_at[b].
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) sums(
    const REAL* __restrict__ theta, const REAL* __restrict__ tables, const long long* __restrict__ first,
    const int* __restrict__ length, const long long* __restrict__ table_at, const long long* __restrict__ mu_at,
    const long long* __restrict__ work_at, REAL* __restrict__ alpha, REAL* __restrict__ value, REAL* __restrict__ mu,
    REAL* __restrict__ mu_tables, REAL eps, int n_chains) {
  __shared__ Four shared[WARPS][PAD / 4 + 1];
  const int lane = threadIdx.x & 31, b = blockIdx.x * WARPS + (threadIdx.x >> 5);
  if (b >= n_chains) return;
  REAL* buf = reinterpret_cast<REAL*>(shared[threadIdx.x >> 5]);
  const REAL* u = theta + first[b]; const REAL* E = tables + table_at[b];
  REAL* A = alpha + work_at[b] * PAD; REAL* p = mu + first[b];
  const int n = length[b]; const bool on = lane < S; const REAL c = REAL(1) / eps; const REAL none = REAL(-1e30);
  REAL P[S];
#pragma unroll
  for (int s = 0; s < S; s++) P[s] = on ? exp_(E[s * S + lane] * c) : REAL(1);
  // Forward: a_n = exp(u_n) (P^T a_{n-1}) / z_{n-1}. Scores are read AHEAD sites before they are needed.
  REAL a = on ? exp_(u[lane] * c) : REAL(0), logz = 0; bool safe = true;
  REAL next[AHEAD];
#pragma unroll
  for (int k = 0; k < AHEAD; k++) next[k] = on && k + 1 < n ? u[(k + 1) * S + lane] : none;
  for (int first_t = 1; first_t <= n; first_t += AHEAD) {
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      const int t = first_t + k;
      if (t > n) break;
      const REAL x = next[k];
      if (t + AHEAD < n) next[k] = on ? u[(t + AHEAD) * S + lane] : none;
      if (on) buf[lane] = a;
      __syncwarp();
      const REAL m = dot(buf, P);
      const REAL z = S < 32 ? __shfl_sync(FULL, m, 31) : total(a);
      __syncwarp();
      const REAL r = inv_(z);
      safe = safe && z > LOW && z < HIGH;
      logz += log_(z);
      A[(t - 1) * PAD + lane] = on ? a : r;
      a = on ? exp_(x * c) * (m * r) : REAL(0);
    }
  }
  if (lane == 0) value[b] = safe ? eps * logz : infinity() - infinity();
  // Backward: b_n = P exp(u_{n+1}) b_{n+1} / z_n; p_n = a_n b_n; pairs are a_n g_{n+1} / z_n times the table.
#pragma unroll
  for (int s = 0; s < S; s++) P[s] = on ? exp_(E[lane * S + s] * c) : REAL(0);
  REAL acc[S];
#pragma unroll
  for (int s = 0; s < S; s++) acc[s] = 0;
  REAL al = A[(n - 1) * PAD + lane];
  REAL r = S < 32 ? __shfl_sync(FULL, al, 31) : inv_(total(al));
  REAL beta = r;
  if (on) p[(n - 1) * S + lane] = al * beta;
  REAL below[AHEAD], xs[AHEAD];
#pragma unroll
  for (int k = 0; k < AHEAD; k++) {
    const int t = n - 2 - k;
    below[k] = t >= 0 ? A[t * PAD + lane] : REAL(0); xs[k] = on && t >= 0 ? u[(t + 1) * S + lane] : none;
  }
  for (int first_t = n - 2; first_t >= 0; first_t -= AHEAD) {
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      const int t = first_t - k;
      if (t < 0) break;
      al = below[k]; const REAL y = xs[k];
      if (t >= AHEAD) {
        below[k] = A[(t - AHEAD) * PAD + lane]; xs[k] = on ? u[(t - AHEAD + 1) * S + lane] : none;
      }
      r = S < 32 ? __shfl_sync(FULL, al, 31) : inv_(total(al));
      if (on) buf[lane] = exp_(y * c) * beta;
      __syncwarp();
      REAL m0 = 0, m1 = 0, m2 = 0, m3 = 0; const REAL f = on ? al * r : REAL(0);
#pragma unroll
      for (int s = 0; s + 3 < S; s += 4) {
        REAL v[4]; load4(buf + s, v);
        m0 += v[0] * P[s]; m1 += v[1] * P[s + 1]; m2 += v[2] * P[s + 2]; m3 += v[3] * P[s + 3];
        acc[s] += f * v[0]; acc[s + 1] += f * v[1]; acc[s + 2] += f * v[2]; acc[s + 3] += f * v[3];
      }
#pragma unroll
      for (int s = S / 4 * 4; s < S; s++) { m0 += buf[s] * P[s]; acc[s] += f * buf[s]; }
      __syncwarp();
      beta = ((m0 + m1) + (m2 + m3)) * r;
      if (on) p[t * S + lane] = al * beta;
    }
  }
  if (on && n > 1) {
    REAL* q = mu_tables + mu_at[b] + lane * S;
#pragma unroll
    for (int s = 0; s < S; s++) q[s] = acc[s] * P[s];
  }
}

// The best path: scores in logs, back pointers in a byte a state; ties go to the first state.
extern "C" __global__ void __launch_bounds__(32 * WARPS) maxima(
    const REAL* __restrict__ theta, const REAL* __restrict__ tables, const long long* __restrict__ first,
    const int* __restrict__ length, const long long* __restrict__ table_at, const long long* __restrict__ mu_at,
    const long long* __restrict__ work_at, unsigned char* __restrict__ back, REAL* __restrict__ value,
    REAL* __restrict__ mu, REAL* __restrict__ mu_tables, REAL eps, int n_chains) {
  __shared__ Four shared[WARPS][PAD / 4 + 1];
  const int lane = threadIdx.x & 31, b = blockIdx.x * WARPS + (threadIdx.x >> 5);
  if (b >= n_chains) return;
  REAL* buf = reinterpret_cast<REAL*>(shared[threadIdx.x >> 5]);
  const REAL* u = theta + first[b]; const REAL* E = tables + table_at[b];
  unsigned char* K = back + work_at[b] * PAD;
  const int n = length[b]; const bool on = lane < S; const REAL none = -infinity();
  REAL P[S];
#pragma unroll
  for (int s = 0; s < S; s++) P[s] = on ? E[s * S + lane] : none;
  REAL a = on ? u[lane] : none, next = on && n > 1 ? u[S + lane] : none;
  for (int t = 1; t < n; t++) {
    const REAL x = next;
    if (t + 1 < n) next = on ? u[(t + 1) * S + lane] : none;
    if (on) buf[lane] = a;
    __syncwarp();
    REAL m = none; int k = 0;
#pragma unroll
    for (int s = 0; s + 3 < S; s += 4) {
      REAL v[4]; load4(buf + s, v);
#pragma unroll
      for (int j = 0; j < 4; j++) { const REAL w = v[j] + P[s + j]; if (w > m) { m = w; k = s + j; } }
    }
#pragma unroll
    for (int s = S / 4 * 4; s < S; s++) { const REAL w = buf[s] + P[s]; if (w > m) { m = w; k = s; } }
    __syncwarp();
    K[t * PAD + lane] = (unsigned char)k;
    a = on ? m + x : none;
  }
  REAL best = a; int state = lane;
#pragma unroll
  for (int o = 16; o; o >>= 1) {
    const REAL other = __shfl_xor_sync(FULL, best, o); const int there = __shfl_xor_sync(FULL, state, o);
    if (other > best || (other == best && there < state)) { best = other; state = there; }
  }
  if (lane == 0) value[b] = best;
  __syncwarp();
  if (best == none || best != best) return;
  int here = n > 1 ? K[(n - 1) * PAD + lane] : 0;
  for (int t = n - 1; t >= 0; t--) {
    const int pointer = here;
    if (t > 1) here = K[(t - 1) * PAD + lane];
    if (on) mu[first[b] + (long long)t * S + lane] = lane == state ? REAL(1) : REAL(0);
    if (t > 0) {
      const int before = __shfl_sync(FULL, pointer, state);
      if (lane == 0) atomicAdd(mu_tables + mu_at[b] + before * S + state, REAL(1));
      state = before;
    }
  }
}
