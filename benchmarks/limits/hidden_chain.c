// What the machine allows for chains of K labels with hidden variables of H states: 8 instances side by side in vector
// registers, scaled probabilities, tied tables, no masks, one length. Build: -O3 -march=native (benchmarks/c_loops.py).
//
//   links   y_t - h_t - y_{t+1}, the scores v_t on h_t: left (K x H), right (H x K); as Chain(hidden=H) builds it
//   leaves  y_t - y_{t+1} with one table (K x K), and h_t, with scores v_t, hanging on y_t by a table leaf (K x H)
//
// Labels have temperature eps > 0, or are maximised (_max); hidden variables have temperature 1. Arrays are C-ordered
// with the instance first; n is a multiple of 8. Given back: values, marginals of labels (the best labels for _max) and
// of hidden variables, and, except by _max, marginals of the tables summed over everything.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifndef K
#define K 10
#endif
#define H 2
#define L 8
#define CHUNK 10  // sites whose pair marginals are added in one go
#define SHUFFLE __builtin_shufflevector
#define INLINE static inline __attribute__((always_inline))
// A small table is read from memory and stays there: else it is spread over the stack as vectors.
#define OPAQUE(p) __asm__("" : "+r"(p))
typedef double vec __attribute__((vector_size(8 * L)));
typedef int64_t ivec __attribute__((vector_size(8 * L)));

INLINE vec all(double x) { return (vec){} + x; }
INLINE vec pick(ivec mask, vec a, vec b) { return (vec)((mask & (ivec)a) | (~mask & (ivec)b)); }
INLINE vec larger(vec a, vec b) { return pick(a > b, a, b); }

INLINE vec exp8(vec x) {  // x <= 0 or a little above; 0 below -708
    x = larger(x, all(-708.0));
    vec y = x * 1.4426950408889634;
    ivec n = __builtin_convertvector(y + pick(y < 0, all(-0.5), all(0.5)), ivec);
    vec k = __builtin_convertvector(n, vec);
    vec r = x - k * 6.93147180369123816490e-01 - k * 1.90821492927058770002e-10;
    vec p = all(2.5052108385441720e-08);
    p = p * r + 2.7557319223985893e-07; p = p * r + 2.7557319223985888e-06; p = p * r + 2.4801587301587302e-05;
    p = p * r + 1.9841269841269841e-04; p = p * r + 1.3888888888888889e-03; p = p * r + 8.3333333333333332e-03;
    p = p * r + 4.1666666666666664e-02; p = p * r + 1.6666666666666666e-01; p = p * r + 0.5;
    p = p * r + 1.0; p = p * r + 1.0;
    return p * (vec)((n + 1023) << 52);
}

INLINE vec log8(vec x) {  // x > 0 and normal
    ivec bits = (ivec)x, e = (bits >> 52) - 1023;
    vec m = (vec)((bits & 0xfffffffffffffLL) | 0x3ff0000000000000LL);
    ivec high = m > 1.5;
    m = pick(high, m * 0.5, m);
    e -= high;  // a true lane is -1
    vec f = m - 1.0, s = f / (2.0 + f), z = s * s, p = all(1.0 / 23);
    p = p * z + 1.0 / 21; p = p * z + 1.0 / 19; p = p * z + 1.0 / 17; p = p * z + 1.0 / 15; p = p * z + 1.0 / 13;
    p = p * z + 1.0 / 11; p = p * z + 1.0 / 9; p = p * z + 1.0 / 7; p = p * z + 0.2; p = p * z + 1.0 / 3; p = p * z + 1.0;
    return __builtin_convertvector(e, vec) * 0.6931471805599453 + 2.0 * s * p;
}

INLINE void transpose8(vec *r) {
    vec a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = SHUFFLE(r[i], r[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
        a[i + 1] = SHUFFLE(r[i], r[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    }
    for (int i = 0; i < 8; i += 4) for (int j = 0; j < 2; j++) {
        b[i + j] = SHUFFLE(a[i + j], a[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        b[i + j + 2] = SHUFFLE(a[i + j], a[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = SHUFFLE(b[i], b[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        r[i + 4] = SHUFFLE(b[i], b[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

// 8 rows of n numbers <-> n vectors
static void lanes_in(const double *u, int n, vec *out) {
    int j = 0;
    for (; j + 8 <= n; j += 8) {
        vec r[8];
        for (int l = 0; l < 8; l++) memcpy(&r[l], u + (long)l * n + j, 64);
        transpose8(r);
        for (int l = 0; l < 8; l++) out[j + l] = r[l];
    }
    for (; j < n; j++) for (int l = 0; l < 8; l++) out[j][l] = u[(long)l * n + j];
}
static void lanes_out(const vec *in, int n, double *u) {
    int j = 0;
    for (; j + 8 <= n; j += 8) {
        vec r[8];
        for (int l = 0; l < 8; l++) r[l] = in[j + l];
        transpose8(r);
        for (int l = 0; l < 8; l++) memcpy(u + (long)l * n + j, &r[l], 64);
    }
    for (; j < n; j++) for (int l = 0; l < 8; l++) u[(long)l * n + j] = in[j][l];
}
static vec *vectors(long n) { return aligned_alloc(64, 64 * n); }
static double top(const double *a, int n) { double m = a[0]; for (int i = 1; i < n; i++) m = fmax(m, a[i]); return m; }
INLINE vec top8(const vec *x, int n) { vec m = x[0]; for (int i = 1; i < n; i++) m = larger(m, x[i]); return m; }
INLINE vec sum8(const vec *x, int n) { vec s = x[0]; for (int i = 1; i < n; i++) s += x[i]; return s; }
static double across(vec x) { double s = 0; for (int l = 0; l < L; l++) s += x[l]; return s; }

// exp of (scores - their maximum) / eps, in place; gives back the maximum
INLINE vec scaled(vec *x, int n, double ie) {
    vec m = top8(x, n);
    for (int i = 0; i < n; i++) x[i] = exp8((x[i] - m) * ie);
    return m;
}

// Products of normalisers, whose logarithm is taken every fourth time.
typedef struct { vec product, log; int count; } Normaliser;
INLINE void multiply(Normaliser *s, vec x) {
    s->product *= x;
    if ((++s->count & 3) == 0) { s->log += log8(s->product); s->product = all(1.0); }
}
INLINE vec total(Normaliser *s) { return s->log + log8(s->product); }
#define NORMALISER {all(1.0), all(0.0), 0}

INLINE void times_table(const vec *x, const double *table, vec *out) {  // out_k = sum_j x_j table[j][k]
    OPAQUE(table);
    vec acc[K];
#pragma GCC unroll 16
    for (int k = 0; k < K; k++) acc[k] = x[0] * table[k];
#pragma GCC unroll 16
    for (int j = 1; j < K; j++) {
        vec q = x[j];
#pragma GCC unroll 16
        for (int k = 0; k < K; k++) acc[k] += q * table[j * K + k];
    }
#pragma GCC unroll 16
    for (int k = 0; k < K; k++) out[k] = acc[k];
}

// G += sums of outer products of x (sites from..to - 1) and y (one site later), in 5 x 5 blocks of registers
INLINE void add_pairs(vec G[K][K], const vec *x, const vec *y, int from, int to) {
    for (int i = 0; i < K; i += 5) for (int j = 0; j < K; j += 5) {
        vec c[5][5];
        for (int a = 0; a < 5; a++) for (int b = 0; b < 5; b++) c[a][b] = G[i + a][j + b];
        for (int t = from; t < to; t++) {
            const vec *p = x + t * K + i, *q = y + (t + 1) * K + j;
            vec q0 = q[0], q1 = q[1], q2 = q[2], q3 = q[3], q4 = q[4];
#pragma GCC unroll 5
            for (int a = 0; a < 5; a++) {
                vec z = p[a];
                c[a][0] += z * q0; c[a][1] += z * q1; c[a][2] += z * q2; c[a][3] += z * q3; c[a][4] += z * q4;
            }
        }
        for (int a = 0; a < 5; a++) for (int b = 0; b < 5; b++) G[i + a][j + b] = c[a][b];
    }
}

void leaves(int n, int T, const double *u, const double *v, const double *table, const double *leaf, double eps,
            double *value, double *mu_y, double *mu_h, double *g_table, double *g_leaf) {
    double A[K * K], At[K * K], Y[K * H], ie = 1 / eps, tmax = top(table, K * K), lmax = top(leaf, K * H);
    for (int i = 0; i < K; i++) for (int j = 0; j < K; j++)
        At[j * K + i] = A[i * K + j] = exp((table[i * K + j] - tmax) * ie);
    for (int i = 0; i < K * H; i++) Y[i] = exp(leaf[i] - lmax);
    vec *a = vectors((long)T * K), *e = vectors((long)T * K), *w = vectors((long)T * K), *g = vectors((long)T * H),
        *q = vectors((long)T * K), *qh = vectors((long)T * H), *inv = vectors(T), G[K][K], GL[K][H];
    memset(G, 0, sizeof G); memset(GL, 0, sizeof GL);
    for (int first = 0; first < n; first += L) {
        lanes_in(u + (long)first * T * K, T * K, e);
        lanes_in(v + (long)first * T * H, T * H, g);
        vec val = all((T - 1) * tmax + T * lmax);
        Normaliser norm = NORMALISER;
        for (int t = 0; t < T; t++) {
            vec *x = e + t * K, *p = a + t * K, *wt = w + t * K, *gt = g + t * H, in[K];
            const double *Yp = Y; OPAQUE(Yp);
            val += scaled(gt, H, 1.0);
            for (int k = 0; k < K; k++) wt[k] = gt[0] * Yp[k * H] + gt[1] * Yp[k * H + 1];
            if (eps == 1.0) {
                val += scaled(x, K, 1.0);
                for (int k = 0; k < K; k++) x[k] *= wt[k];
            } else {
                for (int k = 0; k < K; k++) x[k] += log8(wt[k]);
                val += scaled(x, K, ie);
            }
            if (t) {
                times_table(p - K, A, in);
                for (int k = 0; k < K; k++) in[k] *= x[k];
            } else for (int k = 0; k < K; k++) in[k] = x[k];
            vec s = sum8(in, K);
            multiply(&norm, s);
            inv[t] = 1.0 / s;
            for (int k = 0; k < K; k++) p[k] = in[k] * inv[t];
        }
        val += eps * total(&norm);
        for (int l = 0; l < L; l++) value[first + l] = val[l];
        vec beta[K];
        for (int k = 0; k < K; k++) beta[k] = all(1.0);
        int last = T - 1;  // pairs (t, t + 1) with t >= last are added already
        for (int t = T - 1; t >= 0; t--) {
            vec *x = e + t * K, *p = a + t * K, *qt = q + t * K, h0 = all(0.0), h1 = all(0.0), g0 = g[t * H], g1 = g[t * H + 1];
            const double *Yp = Y; OPAQUE(Yp);
            for (int k = 0; k < K; k++) {
                vec m = p[k] * beta[k], r = m / w[t * K + k], r0 = r * g0, r1 = r * g1;
                qt[k] = m; GL[k][0] += r0; GL[k][1] += r1;
                h0 += r0 * Yp[k * H]; h1 += r1 * Yp[k * H + 1];
            }
            qh[t * H] = h0; qh[t * H + 1] = h1;
            if (t) {
                for (int k = 0; k < K; k++) x[k] *= beta[k] * inv[t];
                times_table(x, At, beta);
            }
            if (last - t >= CHUNK || !t) { add_pairs(G, a, e, t, last); last = t; }
        }
        lanes_out(q, T * K, mu_y + (long)first * T * K);
        lanes_out(qh, T * H, mu_h + (long)first * T * H);
    }
    for (int i = 0; i < K; i++) for (int j = 0; j < K; j++) g_table[i * K + j] = across(G[i][j]) * A[i * K + j];
    for (int k = 0; k < K; k++) for (int h = 0; h < H; h++) g_leaf[k * H + h] = across(GL[k][h]) * Y[k * H + h];
    free(a); free(e); free(w); free(g); free(q); free(qh); free(inv);
}

void leaves_max(int n, int T, const double *u, const double *v, const double *table, const double *leaf,
                double *value, int32_t *y, double *mu_h) {
    double A[K * K], Y[K * H], tmax = top(table, K * K), lmax = top(leaf, K * H);
    for (int i = 0; i < K * K; i++) A[i] = exp(table[i] - tmax);
    for (int i = 0; i < K * H; i++) Y[i] = exp(leaf[i] - lmax);
    vec *d = vectors((long)T * K), *g = vectors((long)T * H);
    ivec *from = (ivec *)vectors((long)T * K);
    for (int first = 0; first < n; first += L) {
        lanes_in(u + (long)first * T * K, T * K, d);
        lanes_in(v + (long)first * T * H, T * H, g);
        vec val = all((T - 1) * tmax + T * lmax);
        Normaliser norm = NORMALISER;
        for (int t = 0; t < T; t++) {
            vec *x = d + t * K, *gt = g + t * H;
            const double *Ap = A, *Yp = Y; OPAQUE(Ap); OPAQUE(Yp);
            val += scaled(gt, H, 1.0) + scaled(x, K, 1.0);
            for (int k = 0; k < K; k++) x[k] *= gt[0] * Yp[k * H] + gt[1] * Yp[k * H + 1];
            if (t) {
                const vec *p = x - K;
                for (int k = 0; k < K; k++) {
                    vec best = p[0] * Ap[k];
                    ivec at = {};
#pragma GCC unroll 16
                    for (int j = 1; j < K; j++) {
                        vec z = p[j] * Ap[j * K + k];
                        ivec up = z > best;
                        at = (up & j) | (~up & at);
                        best = larger(best, z);
                    }
                    x[k] *= best; from[t * K + k] = at;
                }
            }
            vec s = top8(x, K), inv = 1.0 / s;
            multiply(&norm, s);
            for (int k = 0; k < K; k++) x[k] *= inv;
        }
        val += total(&norm);
        for (int l = 0; l < L; l++) {
            int b = 0;
            for (int k = 1; k < K; k++) if (d[(T - 1) * K + k][l] > d[(T - 1) * K + b][l]) b = k;
            value[first + l] = val[l];
            for (int t = T - 1; t >= 0; t--) {
                long at = (long)(first + l) * T + t;
                double h0 = g[t * H][l] * Y[b * H], h1 = g[t * H + 1][l] * Y[b * H + 1], z = 1 / (h0 + h1);
                y[at] = b; mu_h[at * H] = h0 * z; mu_h[at * H + 1] = h1 * z;
                if (t) b = (int)from[t * K + b][l];
            }
        }
    }
    free(d); free(g); free(from);
}

INLINE void through(const vec *g, const double *Lf, const double *R, vec M[K][K]) {  // M_jk = sum_h left_jh g_h right_hk
    OPAQUE(Lf); OPAQUE(R);
    for (int j = 0; j < K; j++) {
        vec c0 = g[0] * Lf[j * H], c1 = g[1] * Lf[j * H + 1];
#pragma GCC unroll 16
        for (int k = 0; k < K; k++) M[j][k] = c0 * R[k] + c1 * R[K + k];
    }
}

// One link backwards at temperature 1: z = right part of y_t; r_h = sum_k right_hk z_k
INLINE void back_sum(vec *z, const vec *p, const vec *g, const vec *c, const double *Lf, const double *R, vec *qh, vec *beta,
                     vec GL[K][H], vec GR[H][K]) {
    OPAQUE(Lf); OPAQUE(R);
    vec r0 = z[0] * R[0], r1 = z[0] * R[K];
    for (int k = 1; k < K; k++) { r0 += z[k] * R[k]; r1 += z[k] * R[K + k]; }
    qh[0] = c[0] * r0; qh[1] = c[1] * r1;
    r0 *= g[0]; r1 *= g[1];
    for (int k = 0; k < K; k++) {
        GL[k][0] += p[k] * r0; GL[k][1] += p[k] * r1;
        GR[0][k] += c[0] * z[k]; GR[1][k] += c[1] * z[k];
        beta[k] = r0 * Lf[k * H] + r1 * Lf[k * H + 1];
    }
}

// The same at another temperature: P_jk = M_jk^(1/eps), pair weights p_j P_jk z_k, of which h takes left g right / M
INLINE void back_power(vec *z, const vec *p, const vec *g, const vec *P, const vec *S, const double *Lf, const double *R,
                       vec *qh, vec *beta, vec GL[K][H], vec GR[H][K]) {
    OPAQUE(Lf); OPAQUE(R);
    vec h0 = all(0.0), h1 = all(0.0), c0[K], c1[K];
    for (int k = 0; k < K; k++) c0[k] = c1[k] = all(0.0);
    for (int j = 0; j < K; j++) {
        vec s = all(0.0), l0 = all(0.0), l1 = all(0.0);
#pragma GCC unroll 16
        for (int k = 0; k < K; k++) {
            s += P[j * K + k] * z[k];
            vec w = p[j] * S[j * K + k] * z[k];
            l0 += w * R[k]; l1 += w * R[K + k];
            c0[k] += w * Lf[j * H]; c1[k] += w * Lf[j * H + 1];
        }
        beta[j] = s; l0 *= g[0]; l1 *= g[1];
        GL[j][0] += l0; GL[j][1] += l1;
        h0 += l0 * Lf[j * H]; h1 += l1 * Lf[j * H + 1];
    }
    for (int k = 0; k < K; k++) { GR[0][k] += c0[k] * g[0]; GR[1][k] += c1[k] * g[1]; }
    qh[0] = h0; qh[1] = h1;
}

// P = M^(2^d) and S = P / M by squaring
INLINE void powers_of_two(const vec *M, int d, vec *P, vec *S) {
    for (int i = 0; i < K * K; i++) {
        vec p = M[i], s = p;
        for (int r = 1; r < d; r++) { p *= p; s *= p; }
        P[i] = s * M[i]; S[i] = s;
    }
}

void links(int n, int T, const double *u, const double *v, const double *left, const double *right, double eps,
           double *value, double *mu_y, double *mu_h, double *g_left, double *g_right) {
    double Lf[K * H], R[H * K], ie = 1 / eps, lmax = top(left, K * H), rmax = top(right, H * K);
    for (int i = 0; i < K * H; i++) { Lf[i] = exp(left[i] - lmax); R[i] = exp(right[i] - rmax); }
    int sum = eps == 1.0, doublings = 0;
    for (int d = 1; d < 10; d++) if (ie == 1 << d) doublings = d;
    vec *a = vectors((long)T * K), *e = vectors((long)T * K), *g = vectors((long)T * H), *c = vectors((long)T * H),
        *q = vectors((long)T * K), *qh = vectors((long)T * H), *inv = vectors(T),
        *P = vectors(sum ? 1 : (long)T * K * K), *S = vectors(sum ? 1 : (long)T * K * K), GL[K][H], GR[H][K];
    memset(GL, 0, sizeof GL); memset(GR, 0, sizeof GR);
    for (int first = 0; first < n; first += L) {
        lanes_in(u + (long)first * T * K, T * K, e);
        lanes_in(v + (long)first * (T - 1) * H, (T - 1) * H, g);
        vec val = all((T - 1) * (lmax + rmax));
        Normaliser norm = NORMALISER;
        for (int t = 0; t < T; t++) {
            vec *x = e + t * K, *p = a + t * K, in[K];
            const double *Lp = Lf, *Rp = R; OPAQUE(Lp); OPAQUE(Rp);
            val += scaled(x, K, ie);
            if (t) {
                vec *gt = g + (t - 1) * H, *ct = c + (t - 1) * H, *before = p - K;
                val += scaled(gt, H, 1.0);
                if (sum) {
                    vec b0 = before[0] * Lp[0], b1 = before[0] * Lp[1];
                    for (int k = 1; k < K; k++) { b0 += before[k] * Lp[k * H]; b1 += before[k] * Lp[k * H + 1]; }
                    ct[0] = b0 * gt[0]; ct[1] = b1 * gt[1];
                    for (int k = 0; k < K; k++) in[k] = (ct[0] * Rp[k] + ct[1] * Rp[K + k]) * x[k];
                } else {
                    vec M[K][K], *Pt = P + (long)t * K * K, *St = S + (long)t * K * K;
                    through(gt, Lf, R, M);
                    if (doublings) powers_of_two(&M[0][0], doublings, Pt, St);
                    else for (int i = 0; i < K * K; i++) {
                        vec m = (&M[0][0])[i];
                        St[i] = exp8(log8(m) * (ie - 1));
                        Pt[i] = St[i] * m;
                    }
                    for (int k = 0; k < K; k++) in[k] = before[0] * Pt[k];
                    for (int j = 1; j < K; j++) for (int k = 0; k < K; k++) in[k] += before[j] * Pt[j * K + k];
                    for (int k = 0; k < K; k++) in[k] *= x[k];
                }
            } else for (int k = 0; k < K; k++) in[k] = x[k];
            vec s = sum8(in, K);
            multiply(&norm, s);
            inv[t] = 1.0 / s;
            for (int k = 0; k < K; k++) p[k] = in[k] * inv[t];
        }
        val += eps * total(&norm);
        for (int l = 0; l < L; l++) value[first + l] = val[l];
        vec beta[K];
        for (int k = 0; k < K; k++) beta[k] = all(1.0);
        for (int t = T - 1; t >= 0; t--) {
            vec *x = e + t * K, *p = a + t * K;
            for (int k = 0; k < K; k++) { q[t * K + k] = p[k] * beta[k]; x[k] *= beta[k]; }
            if (!t) break;
            vec *gt = g + (t - 1) * H, *ht = qh + (t - 1) * H;
            for (int k = 0; k < K; k++) x[k] *= inv[t];
            if (sum) back_sum(x, p - K, gt, c + (t - 1) * H, Lf, R, ht, beta, GL, GR);
            else back_power(x, p - K, gt, P + (long)t * K * K, S + (long)t * K * K, Lf, R, ht, beta, GL, GR);
        }
        lanes_out(q, T * K, mu_y + (long)first * T * K);
        lanes_out(qh, (T - 1) * H, mu_h + (long)first * (T - 1) * H);
    }
    for (int k = 0; k < K; k++) for (int h = 0; h < H; h++) {
        g_left[k * H + h] = across(GL[k][h]) * Lf[k * H + h];
        g_right[h * K + k] = across(GR[h][k]) * R[h * K + k];
    }
    free(a); free(e); free(g); free(c); free(q); free(qh); free(inv); free(P); free(S);
}

void links_max(int n, int T, const double *u, const double *v, const double *left, const double *right,
               double *value, int32_t *y, double *mu_h) {
    double Lf[K * H], R[H * K], lmax = top(left, K * H), rmax = top(right, H * K);
    for (int i = 0; i < K * H; i++) { Lf[i] = exp(left[i] - lmax); R[i] = exp(right[i] - rmax); }
    vec *d = vectors((long)T * K), *g = vectors((long)T * H);
    ivec *from = (ivec *)vectors((long)T * K);
    for (int first = 0; first < n; first += L) {
        lanes_in(u + (long)first * T * K, T * K, d);
        lanes_in(v + (long)first * (T - 1) * H, (T - 1) * H, g);
        vec val = all((T - 1) * (lmax + rmax));
        Normaliser norm = NORMALISER;
        for (int t = 0; t < T; t++) {
            vec *x = d + t * K;
            val += scaled(x, K, 1.0);
            if (t) {
                const vec *p = x - K, *gt = g + (t - 1) * H;
                const double *Lp = Lf, *Rp = R; OPAQUE(Lp); OPAQUE(Rp);
                val += scaled((vec *)gt, H, 1.0);
                vec c0[K], c1[K];
                for (int j = 0; j < K; j++) { c0[j] = p[j] * gt[0] * Lp[j * H]; c1[j] = p[j] * gt[1] * Lp[j * H + 1]; }
                for (int k = 0; k < K; k++) {
                    vec best = c0[0] * Rp[k] + c1[0] * Rp[K + k];
                    ivec at = {};
#pragma GCC unroll 16
                    for (int j = 1; j < K; j++) {
                        vec z = c0[j] * Rp[k] + c1[j] * Rp[K + k];
                        ivec up = z > best;
                        at = (up & j) | (~up & at);
                        best = larger(best, z);
                    }
                    x[k] *= best; from[t * K + k] = at;
                }
            }
            vec s = top8(x, K), inv = 1.0 / s;
            multiply(&norm, s);
            for (int k = 0; k < K; k++) x[k] *= inv;
        }
        val += total(&norm);
        for (int l = 0; l < L; l++) {
            int b = 0;
            for (int k = 1; k < K; k++) if (d[(T - 1) * K + k][l] > d[(T - 1) * K + b][l]) b = k;
            value[first + l] = val[l];
            int32_t *yl = y + (long)(first + l) * T;
            double *qh = mu_h + (long)(first + l) * (T - 1) * H;
            for (int t = T - 1; t >= 0; t--) {
                yl[t] = b;
                if (!t) break;
                int a = (int)from[t * K + b][l];
                double h0 = g[(t - 1) * H][l] * Lf[a * H] * R[b], h1 = g[(t - 1) * H + 1][l] * Lf[a * H + 1] * R[K + b];
                double z = 1 / (h0 + h1);
                qh[(t - 1) * H] = h0 * z; qh[(t - 1) * H + 1] = h1 * z;
                b = a;
            }
        }
    }
    free(d); free(g); free(from);
}
