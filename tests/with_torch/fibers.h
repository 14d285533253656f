// A block of a GPU on the CPU: every thread is a fiber that runs until it waits for others. Enough of CUDA for the kernels here.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#define __device__
#define __global__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
using std::max;
using std::min;

enum Waiting { FOR_NOBODY, FOR_LANES, FOR_ALL };
struct Thread { ucontext_t context; bool done; unsigned long meetings, barriers; Waiting waiting; unsigned mask; std::vector<char> stack; };
struct int2 { int x, y; };
struct int4 { int x, y, z, w; };
struct float4 { float x, y, z, w; };
static struct { int x; } blockIdx, threadIdx;
static Thread threads[1024];
static ucontext_t scheduler;
static double slots[1024];
static int n_threads, current;
static void (*body)();

static bool may_go_on(int t) {
  const Thread& me = threads[t];
  if (me.done) return false;
  for (int o = 0; o < n_threads; o++) {
    const Thread& other = threads[o];
    if (other.done) continue;
    if (me.waiting == FOR_ALL && other.barriers < me.barriers) return false;
    if (me.waiting == FOR_LANES && o / 32 == t / 32 && (me.mask >> o % 32 & 1) && other.meetings < me.meetings) return false;
  }
  return true;
}

static void meet(unsigned mask) {
  Thread& me = threads[current];
  if (!(mask >> current % 32 & 1)) { fprintf(stderr, "lane %d is not among those it waits for\n", current % 32); abort(); }
  me.meetings++; me.mask = mask; me.waiting = FOR_LANES;
  swapcontext(&me.context, &scheduler);
}
static void __syncwarp(unsigned mask = 0xffffffffu) { meet(mask); }
static void __syncthreads() {
  Thread& me = threads[current];
  me.barriers++; me.waiting = FOR_ALL;
  swapcontext(&me.context, &scheduler);
}

static int votes;
static int __syncthreads_or(int vote) {
  if (vote) votes = 1;
  __syncthreads();
  const int found = votes;
  __syncthreads();
  votes = 0;
  __syncthreads();
  return found;
}

template <class T> static T from(unsigned mask, T x, int source) {
  if (!(mask >> source % 32 & 1)) { fprintf(stderr, "lane %d is not among those that are read\n", source % 32); abort(); }
  memcpy(&slots[current], &x, sizeof(T)); meet(mask);
  memcpy(&x, &slots[source], sizeof(T)); meet(mask);
  return x;
}
template <class T> static T __shfl_sync(unsigned mask, T x, int lane, int width = 32) { return from(mask, x, current / width * width + lane % width); }
template <class T> static T __shfl_xor_sync(unsigned mask, T x, int by) { return from(mask, x, current ^ by); }
template <class T> static T __shfl_down_sync(unsigned mask, T x, int by) { return from(mask, x, current % 32 + by < 32 ? current + by : current); }
template <class Join> static double over_lanes(unsigned mask, double x, Join join) {
  slots[current] = x; meet(mask);
  for (int l = 0, t = current / 32 * 32; l < 32; l++, t++) if ((mask >> l & 1) && t != current && !threads[t].done) x = join(x, slots[t]);
  meet(mask);
  return x;
}
static unsigned __ballot_sync(unsigned mask, bool x) {
  return unsigned(over_lanes(mask, x ? double(1u << current % 32) : 0.0, [](double a, double b) { return a + b; }));
}
static bool __any_sync(unsigned mask, bool x) { return __ballot_sync(mask, x) != 0; }
static int __reduce_max_sync(unsigned mask, int x) { return int(over_lanes(mask, x, [](double a, double b) { return a > b ? a : b; })); }

template <class To, class From> static To bits(From x) { To y; memcpy(&y, &x, sizeof(To)); return y; }
static float __int_as_float(int x) { return bits<float>(x); }
static int __float_as_int(float x) { return bits<int>(x); }
static long long __double_as_longlong(double x) { return bits<long long>(x); }
static int __float2int_rn(float x) { return int(rintf(x)); }
static int __ffs(int x) { return __builtin_ffs(x); }
static int __popc(unsigned x) { return __builtin_popcount(x); }
static int __vimax3_s32(int a, int b, int c) { return max(a, max(b, c)); }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <class T> static T __ldcs(const T* at) { return *at; }
template <class T> static void __stcs(T* at, T x) { *at = x; }
template <class T> static void atomicAdd(T* at, T x) { *at += x; }
template <class T> static void atomicMax(T* at, T x) { *at = max(*at, x); }

// As common.cu has them, on the CPU.
#define __powf powf
static float rsqrtf(float x) { return 1 / sqrtf(x); }
static double rsqrt(double x) { return 1 / sqrt(x); }
static float exp_(float x) { const float y = expf(x); return y < 1.2e-38f ? 0 : y; }  // no denormal numbers
static double exp_(double x) { return exp(x); }
static float log_(float x) { return logf(x); }
static double log_(double x) { return log(x); }
static float inv_(float x) { return 1 / x; }
static double inv_(double x) { return 1 / x; }
static float larger(float a, float b) { return fmaxf(a, b); }
static double larger(double a, double b) { return fmax(a, b); }
static REAL infinity() { return REAL(INFINITY); }

static void run_thread() { body(); threads[current].done = true; }

static void launch(int blocks, int size) {
  n_threads = size;
  for (int block = 0; block < blocks; block++) {
    blockIdx.x = block;
    for (int t = 0; t < n_threads; t++) {
      Thread& me = threads[t];
      me.done = false; me.meetings = me.barriers = 0; me.waiting = FOR_NOBODY; me.stack.resize(1 << 17);
      getcontext(&me.context);
      me.context.uc_stack.ss_sp = me.stack.data(); me.context.uc_stack.ss_size = me.stack.size(); me.context.uc_link = &scheduler;
      makecontext(&me.context, run_thread, 0);
    }
    for (bool alive = true, moved = true; alive;) {
      if (!moved) { fprintf(stderr, "threads wait for each other\n"); abort(); }
      alive = moved = false;
      for (int t = 0; t < n_threads; t++) {
        alive = alive || !threads[t].done;
        if (!may_go_on(t)) continue;
        threadIdx.x = current = t; moved = true;
        swapcontext(&scheduler, &threads[t].context);
      }
    }
  }
}
