// What the machine allows for sum-product sweeps on grids of S states: 8 grids side by side in vector registers, scaled
// probabilities, one table for all pairs in a direction. Build: -O3 -march=native (benchmarks/c_loops.py).
//
// messages [node][from: left, up, right, down][S][8], scores [node][S][8] are exponentials already. A sweep goes forward
// and back through the nodes and sends every directed message once; gap is the largest change in the last sweep.
#ifndef S
#define S 5
#endif
#define L 8
#define INLINE static inline __attribute__((always_inline))
typedef double vec __attribute__((vector_size(8 * L)));
typedef long long ivec __attribute__((vector_size(8 * L)));
enum { LEFT = 0, UP = S, RIGHT = 2 * S, DOWN = 3 * S, NODE = 4 * S };

INLINE vec larger(vec a, vec b) { ivec m = a > b; return (vec)((m & (ivec)a) | (~m & (ivec)b)); }
INLINE vec size(vec a) { return (vec)((ivec)a & 0x7fffffffffffffffLL); }

INLINE void send(const vec *n, const double *psi, int in, int out, vec *message, vec *gap) {
    __asm__("" : "+r"(psi));  // read from memory, else the table is spread over the stack as vectors
    vec a[S];
#pragma GCC unroll 8
    for (int y = 0; y < S; y++) {
        a[y] = n[0] * psi[y * out];
#pragma GCC unroll 8
        for (int x = 1; x < S; x++) a[y] += n[x] * psi[x * in + y * out];
    }
    vec s = a[0];
    for (int y = 1; y < S; y++) s += a[y];
    s = 1.0 / s;
#pragma GCC unroll 8
    for (int y = 0; y < S; y++) {
        vec m = a[y] * s;
        *gap = larger(*gap, size(m - message[y]));
        message[y] = m;
    }
}

void sweeps(int height, int width, int count, vec *messages, const vec *scores, const double *across, const double *down,
            double *gap) {
    vec g = {};
    for (int it = 0; it < count; it++) {
        g = (vec){};
        for (int v = 0; v < height * width; v++) {
            vec *m = messages + (long)v * NODE, b[S], n[S];
            const vec *e = scores + (long)v * S;
            for (int x = 0; x < S; x++) b[x] = e[x] * m[LEFT + x] * m[UP + x];
            if (v % width + 1 < width) {
                for (int x = 0; x < S; x++) n[x] = b[x] * m[DOWN + x];
                send(n, across, S, 1, m + NODE + LEFT, &g);
            }
            if (v + width < height * width) {
                for (int x = 0; x < S; x++) n[x] = b[x] * m[RIGHT + x];
                send(n, down, S, 1, m + (long)width * NODE + UP, &g);
            }
        }
        for (int v = height * width - 1; v >= 0; v--) {
            vec *m = messages + (long)v * NODE, b[S], n[S];
            const vec *e = scores + (long)v * S;
            for (int x = 0; x < S; x++) b[x] = e[x] * m[RIGHT + x] * m[DOWN + x];
            if (v % width) {
                for (int x = 0; x < S; x++) n[x] = b[x] * m[UP + x];
                send(n, across, 1, S, m - NODE + RIGHT, &g);
            }
            if (v >= width) {
                for (int x = 0; x < S; x++) n[x] = b[x] * m[LEFT + x];
                send(n, down, 1, S, m - (long)width * NODE + DOWN, &g);
            }
        }
    }
    for (int l = 0; l < L; l++) gap[l] = g[l];
}
