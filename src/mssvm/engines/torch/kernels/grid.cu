// Belief propagation on grids of H x W variables of S states, a table for each of the two directions: one block a grid,
// all messages in shared memory, all sweeps in one launch. Compiled with H, W, S, T (threads), BLOCKS (a multiprocessor),
// MAXIMA and FLOODING. Messages are scaled so that their largest entry is 1. Slots 0 to 3 of a node hold what comes from the left, the right,
// above and below. Flooding reads everything before it writes; otherwise the nodes of one colour send, then the others.
constexpr int N = H * W, HALF = (W + 1) / 2;
constexpr int ALL = FLOODING ? (N + T - 1) / T : 2 * ((H * HALF + T - 1) / T);

// The node of round r of a thread, or -1: any node when flooding, else of colour 0 in the first half of the rounds.
__device__ __forceinline__ int node(int r) {
  if (FLOODING) { const int n = r * T + threadIdx.x; return n < N ? n : -1; }
  const int colour = r >= ALL / 2, k = (r - colour * (ALL / 2)) * T + threadIdx.x, i = k / HALF;
  const int j = 2 * (k % HALF) + ((i + colour) & 1);
  return i < H && j < W ? i * W + j : -1;
}

__device__ __forceinline__ float pow_(float x, float y) { return __powf(x, y); }
__device__ __forceinline__ double pow_(double x, double y) { return pow(x, y); }

// The message c sent through the table P (transposed if TR), largest entry 1.
template <bool TR> __device__ __forceinline__ void send(const REAL* c, const REAL* P, REAL* o) {
#pragma unroll
  for (int t = 0; t < S; t++) o[t] = 0;
#pragma unroll
  for (int s = 0; s < S; s++)
#pragma unroll
    for (int t = 0; t < S; t++) {
      const REAL q = c[s] * (TR ? P[t * S + s] : P[s * S + t]);
      o[t] = MAXIMA ? (q > o[t] ? q : o[t]) : o[t] + q;
    }
  REAL z = o[0];
#pragma unroll
  for (int t = 1; t < S; t++) z = o[t] > z ? o[t] : z;
  z = inv_(z);
#pragma unroll
  for (int t = 0; t < S; t++) o[t] *= z;
}

struct Shared { REAL* m; const REAL* PH; const REAL* PV; };

// All four messages of node n; o[d] is what goes to the right, left, below, above.
__device__ __forceinline__ void messages(const Shared& sh, const REAL* U, int n, REAL o[4][S]) {
  REAL L[S], R[S], A[S], B[S], c[S];
#pragma unroll
  for (int s = 0; s < S; s++) {
    L[s] = sh.m[(0 * S + s) * N + n]; R[s] = sh.m[(1 * S + s) * N + n];
    A[s] = sh.m[(2 * S + s) * N + n]; B[s] = sh.m[(3 * S + s) * N + n];
  }
#pragma unroll
  for (int s = 0; s < S; s++) c[s] = U[s] * L[s] * A[s] * B[s];
  send<false>(c, sh.PH, o[0]);
#pragma unroll
  for (int s = 0; s < S; s++) c[s] = U[s] * R[s] * A[s] * B[s];
  send<true>(c, sh.PH, o[1]);
#pragma unroll
  for (int s = 0; s < S; s++) c[s] = U[s] * A[s] * L[s] * R[s];
  send<false>(c, sh.PV, o[2]);
#pragma unroll
  for (int s = 0; s < S; s++) c[s] = U[s] * B[s] * L[s] * R[s];
  send<true>(c, sh.PV, o[3]);
}

// Puts what node n sends into its neighbours' slots, averaged with what was there; the largest change if LOOK.
template <bool LOOK> __device__ __forceinline__ REAL deliver(REAL* m, int n, REAL o[4][S], REAL damping) {
  const int i = n / W, j = n % W; REAL change = 0;
#pragma unroll
  for (int d = 0; d < 4; d++) {
    const bool there = d == 0 ? j < W - 1 : d == 1 ? j > 0 : d == 2 ? i < H - 1 : i > 0;
    const int to = n + (d == 0 ? 1 : d == 1 ? -1 : d == 2 ? W : -W);
    if (!there) continue;
#pragma unroll
    for (int s = 0; s < S; s++) {
      REAL* at = m + (d * S + s) * N + to; REAL x = o[d][s];
      if (damping > 0) { const REAL old = *at; if (x > 0 && old > 0) x = pow_(x, 1 - damping) * pow_(old, damping); }
      if (LOOK) {
        const REAL old = *at;
        const REAL moved = x == old ? REAL(0) : x > 0 && old > 0 ? fabs(log_(x / old)) : infinity();
        change = moved > change ? moved : change;
      }
      *at = x;
    }
  }
  return change;
}

extern "C" __global__ void __launch_bounds__(T, BLOCKS) sweep(
    const REAL* __restrict__ unary, const REAL* __restrict__ tables, const long long* __restrict__ table_at,
    const int* __restrict__ grids, REAL* __restrict__ log_messages, REAL* __restrict__ residual,
    int* __restrict__ swept, REAL eps, REAL damping, REAL tolerance, int n_sweeps, int look) {
  extern __shared__ __align__(16) unsigned char raw[];
  REAL* m = reinterpret_cast<REAL*>(raw);  // [4][S][N]
  __shared__ REAL PH[S * S], PV[S * S], worst[32];
  __shared__ int done;
  const int b = grids[blockIdx.x]; const REAL c = REAL(1) / eps;
  if (residual[b] <= tolerance) return;
  for (int k = threadIdx.x; k < S * S; k += T) {
    PH[k] = exp_(tables[table_at[2 * b] + k] * c); PV[k] = exp_(tables[table_at[2 * b + 1] + k] * c);
  }
  // Slots of the batch: edge f of the grid is 2 f (to its first end) and 2 f + 1; edges across, then edges down.
  constexpr int ACROSS = H * (W - 1), EDGES = ACROSS + (H - 1) * W;
  REAL* mine = log_messages + (long long)b * 2 * EDGES * S;
  for (int k = threadIdx.x; k < 4 * S * N; k += T) m[k] = 1;
  __syncthreads();
  for (int k = threadIdx.x; k < 2 * EDGES * S; k += T) {
    const int s = k % S, slot = k / S, f = slot / 2, second = slot & 1; int n, d;
    if (f < ACROSS) { n = f / (W - 1) * W + f % (W - 1) + second; d = second ? 0 : 1; }
    else { n = f - ACROSS + second * W; d = second ? 2 : 3; }
    m[(d * S + s) * N + n] = exp_(mine[k] * c);
  }
  REAL U[ALL][S];
#pragma unroll
  for (int r = 0; r < ALL; r++) {
    const int n = node(r); REAL top = -infinity();
    if (n >= 0) {
#pragma unroll
      for (int s = 0; s < S; s++) { U[r][s] = unary[((long long)b * N + n) * S + s]; top = U[r][s] > top ? U[r][s] : top; }
#pragma unroll
      for (int s = 0; s < S; s++) U[r][s] = top > -infinity() ? exp_((U[r][s] - top) * c) : REAL(0);
    }
  }
  const Shared sh{m, PH, PV};
  __syncthreads();
  int made = 0; REAL change = 0;
  for (int it = 0; it < n_sweeps; it++) {
    const bool looking = it + 1 == n_sweeps || (it + 1) % look == 0;
    change = 0; made++;
    if (FLOODING) {
      REAL o[ALL][4][S];
#pragma unroll
      for (int r = 0; r < ALL; r++) { const int n = node(r); if (n >= 0) messages(sh, U[r], n, o[r]); }
      __syncthreads();
#pragma unroll
      for (int r = 0; r < ALL; r++) {
        const int n = node(r);
        if (n >= 0) {
          const REAL moved = looking ? deliver<true>(m, n, o[r], damping) : deliver<false>(m, n, o[r], damping);
          change = moved > change ? moved : change;
        }
      }
      __syncthreads();
    } else {
#pragma unroll
      for (int half = 1; half >= 0; half--) {  // colour 1 sends first, to the variables of colour 0
#pragma unroll
        for (int r = half * (ALL / 2); r < (half + 1) * (ALL / 2); r++) {
          const int n = node(r); REAL o[4][S];
          if (n >= 0) {
            messages(sh, U[r], n, o);
            const REAL moved = looking ? deliver<true>(m, n, o, damping) : deliver<false>(m, n, o, damping);
            change = moved > change ? moved : change;
          }
        }
        __syncthreads();
      }
    }
    if (looking) {
#pragma unroll
      for (int k = 16; k; k >>= 1) { const REAL x = __shfl_xor_sync(0xffffffffu, change, k); change = x > change ? x : change; }
      if ((threadIdx.x & 31) == 0) worst[threadIdx.x >> 5] = change;
      __syncthreads();
      if (threadIdx.x == 0) {
        for (int k = 0; k < (T + 31) / 32; k++) change = worst[k] > change ? worst[k] : change;
        worst[0] = change; done = change <= tolerance;
      }
      __syncthreads();
      change = worst[0];
      if (done) break;
    }
  }
  for (int k = threadIdx.x; k < 2 * EDGES * S; k += T) {
    const int s = k % S, slot = k / S, f = slot / 2, second = slot & 1; int n, d;
    if (f < ACROSS) { n = f / (W - 1) * W + f % (W - 1) + second; d = second ? 0 : 1; }
    else { n = f - ACROSS + second * W; d = second ? 2 : 3; }
    mine[k] = eps * log_(m[(d * S + s) * N + n]);
  }
  if (threadIdx.x == 0) { residual[b] = change; swept[b] += made; }
}
