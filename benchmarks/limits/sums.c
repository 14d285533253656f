// The sum of an array, taken many times: what cores, caches and memory allow.
#include <stdint.h>

double repeated_sum(const double *numbers, int64_t n, int64_t times) {
    double out = 0.0;
    for (int64_t t = 0; t < times; ++t) {
        double part[16] = {0};
        int64_t i = 0;
        for (; i + 16 <= n; i += 16)
            for (int j = 0; j < 16; ++j) part[j] += numbers[i + j];
        double sum = 0.0;
        for (int j = 0; j < 16; ++j) sum += part[j];
        for (; i < n; ++i) sum += numbers[i];
        out = 0.5 * out + sum;
    }
    return out;
}
