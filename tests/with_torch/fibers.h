// A warp of a GPU on the CPU: every lane is a fiber that runs until it waits for others. Enough of CUDA for the kernels of forests.
#include <ucontext.h>

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

struct Lane { ucontext_t context; bool done; unsigned long waits; unsigned mask; std::vector<char> stack; };
static struct { int x; } blockIdx, threadIdx;
static Lane lanes[32];
static ucontext_t scheduler;
static double slots[32];
static int current;
static void (*body)();

static bool may_go_on(int l) {
  if (lanes[l].done) return false;
  for (int o = 0; o < 32; o++)
    if ((lanes[l].mask >> o & 1) && !lanes[o].done && lanes[o].waits < lanes[l].waits) return false;
  return true;
}

static void meet(unsigned mask) {
  Lane& me = lanes[current];
  if (!(mask >> current & 1)) { fprintf(stderr, "lane %d is not among those it waits for\n", current); abort(); }
  me.waits++; me.mask = mask;
  swapcontext(&me.context, &scheduler);
}

template <class T> static T from(unsigned mask, T x, int source) {
  if (!(mask >> source & 1)) { fprintf(stderr, "lane %d is not among those that are read\n", source); abort(); }
  memcpy(&slots[current], &x, sizeof(T)); meet(mask);
  memcpy(&x, &slots[source], sizeof(T)); meet(mask);
  return x;
}
static void __syncwarp(unsigned mask) { meet(mask); }
template <class T> static T __shfl_sync(unsigned mask, T x, int lane, int width = 32) { return from(mask, x, current / width * width + lane % width); }
template <class T> static T __shfl_xor_sync(unsigned mask, T x, int by) { return from(mask, x, current ^ by); }
static unsigned __ballot_sync(unsigned mask, bool x) {
  slots[current] = x; meet(mask); unsigned found = 0;
  for (int l = 0; l < 32; l++) if ((mask >> l & 1) && !lanes[l].done && slots[l] != 0) found |= 1u << l;
  meet(mask);
  return found;
}
static int __reduce_max_sync(unsigned mask, int x) {
  slots[current] = x; meet(mask); double most = slots[current];
  for (int l = 0; l < 32; l++) if ((mask >> l & 1) && !lanes[l].done && slots[l] > most) most = slots[l];
  meet(mask);
  return int(most);
}
static int __ffs(int x) { return __builtin_ffs(x); }
template <class T> static void atomicAdd(T* at, T x) { *at += x; }

static float exp_(float x) { const float y = expf(x); return y < 1.2e-38f ? 0 : y; }  // no denormal numbers
static double exp_(double x) { return exp(x); }
static float log_(float x) { return logf(x); }
static double log_(double x) { return log(x); }
static float larger(float a, float b) { return fmaxf(a, b); }
static double larger(double a, double b) { return fmax(a, b); }
static REAL infinity() { return REAL(INFINITY); }

static void run_lane() { body(); lanes[current].done = true; }

static void launch(int blocks, int threads) {
  for (int warp = 0; warp < blocks * threads / 32; warp++) {
    blockIdx.x = warp / (threads / 32);
    for (Lane& lane : lanes) {
      lane.done = false; lane.waits = 0; lane.mask = 0; lane.stack.resize(1 << 18);
      getcontext(&lane.context);
      lane.context.uc_stack.ss_sp = lane.stack.data(); lane.context.uc_stack.ss_size = lane.stack.size();
      lane.context.uc_link = &scheduler;
      makecontext(&lane.context, run_lane, 0);
    }
    for (bool alive = true, moved = true; alive; ) {
      if (!moved) { fprintf(stderr, "lanes wait for each other\n"); abort(); }
      alive = moved = false;
      for (current = 0; current < 32; current++) {
        alive = alive || !lanes[current].done;
        if (!may_go_on(current)) continue;
        threadIdx.x = warp % (threads / 32) * 32 + current; moved = true;
        const int me = current;
        swapcontext(&scheduler, &lanes[me].context);
        current = me;
      }
    }
  }
}
