// Belief propagation on any pairwise graph at one temperature: a sweep is one launch for the sums at the variables and one
// for the messages, a thread each. Compiled with S, THREADS, TABLES (different tables, kept in shared memory; 0: too many),
// STAGED (a block's tables are brought there) and MAXIMA. Messages are logs, the largest entry 0; tables come as
// exp(theta / eps) and must be positive.
__device__ __forceinline__ void raise(float* at, float x) { atomicMax(reinterpret_cast<int*>(at), __float_as_int(x)); }
__device__ __forceinline__ void raise(double* at, double x) {
  atomicMax(reinterpret_cast<long long*>(at), __double_as_longlong(x));
}

// The new message o in the place of the old one; the largest change so far.
__device__ __forceinline__ REAL put(const REAL* o, REAL* at, REAL eps, REAL damping, REAL moved) {
  REAL top = o[0];
#pragma unroll
  for (int t = 1; t < S; t++) top = o[t] > top ? o[t] : top;
  const REAL scale = REAL(1) / top;
#pragma unroll
  for (int t = 0; t < S; t++) {
    const REAL before = at[t], x = (1 - damping) * eps * log_(o[t] * scale) + damping * before;
    const REAL by = x > before ? x - before : before - x;
    moved = by > moved ? by : moved;
    at[t] = x;
  }
  return moved;
}

// field[i] = unary[i] + all messages to i; the slots of variable i are slot[ptr[i]] .. slot[ptr[i + 1] - 1].
extern "C" __global__ void fields(const REAL* __restrict__ unary, const REAL* __restrict__ m, const int* __restrict__ ptr,
                                  const int* __restrict__ slot, REAL* __restrict__ field, int n) {
  const long long k = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (k >= (long long)n * S) return;
  const int i = int(k / S), s = int(k % S);
  REAL total = unary[k];
  for (int j = ptr[i]; j < ptr[i + 1]; j++) total += m[(long long)slot[j] * S + s];
  field[k] = total;
}

// Both messages of every factor of instances that have not converged (of a colour: those to its variables), in place: a
// factor's new messages depend on its old ones and on the fields. A block reads and writes its messages side by side.
extern "C" __global__ void __launch_bounds__(THREADS) messages(
    const REAL* __restrict__ field, REAL* __restrict__ m, const REAL* __restrict__ tables, const int* __restrict__ number,
    const int* __restrict__ ends, const int* __restrict__ owner, const signed char* __restrict__ colours,
    const signed char* __restrict__ active, REAL* __restrict__ change, REAL eps, REAL damping, int colour, int look,
    int n_factors) {
  constexpr int SS = S * S, ROW = 2 * S;
  __shared__ REAL kept[TABLES ? TABLES * SS : STAGED ? THREADS * SS : 1], rows[THREADS * ROW];
  const int first = blockIdx.x * THREADS, n = min(THREADS, n_factors - first);
  for (int k = threadIdx.x; k < TABLES * SS; k += THREADS) kept[k] = tables[k];
  if (STAGED)
    for (int k = threadIdx.x; k < n * SS; k += THREADS) kept[k] = tables[(long long)number[first + k / SS] * SS + k % SS];
  REAL* mine = m + (long long)first * ROW;
  for (int k = threadIdx.x; k < n * ROW; k += THREADS) rows[k] = mine[k];
  __syncthreads();
  const int f = first + threadIdx.x;
  REAL moved = 0; bool on = threadIdx.x < n && active[owner[f]];
  if (on) {
    const REAL* P = TABLES ? kept + number[f] * SS : STAGED ? kept + threadIdx.x * SS : tables + (long long)number[f] * SS;
    const REAL c = REAL(1) / eps;
    REAL e[2][S], o[S]; REAL* row = rows + threadIdx.x * ROW;
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const REAL* from = field + (long long)ends[2LL * f + k] * S; REAL top = -infinity();
#pragma unroll
      for (int s = 0; s < S; s++) { e[k][s] = from[s] - row[k * S + s]; top = e[k][s] > top ? e[k][s] : top; }
#pragma unroll
      for (int s = 0; s < S; s++) e[k][s] = top > -infinity() ? exp_((e[k][s] - top) * c) : REAL(1);
    }
#pragma unroll
    for (int t = 0; t < S; t++) o[t] = 0;
    REAL back[S];
#pragma unroll
    for (int a = 0; a < S; a++) {
      REAL sum = 0;
#pragma unroll
      for (int b = 0; b < S; b++) {
        const REAL p = P[a * S + b], there = e[0][a] * p, here = e[1][b] * p;
        o[b] = MAXIMA ? (there > o[b] ? there : o[b]) : o[b] + there;
        sum = MAXIMA ? (here > sum ? here : sum) : sum + here;
      }
      back[a] = sum;
    }
    const bool both = colour < 0;
    if (both || colours[2LL * f] == colour) moved = put(back, row, eps, damping, moved);
    if (both || colours[2LL * f + 1] == colour) moved = put(o, row + S, eps, damping, moved);
  }
  __syncthreads();
  for (int k = threadIdx.x; k < n * ROW; k += THREADS) mine[k] = rows[k];
  if (look && on) raise(change + owner[f], moved);
}
