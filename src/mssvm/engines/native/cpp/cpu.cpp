// Which of the library's variants this processor can run. Compiled for the oldest processors of a family, and loaded
// first.
#include <cstdint>
#if defined(__x86_64__)
#include <cpuid.h>

namespace {

struct Registers {
    unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf) {
    Registers r;
    __get_cpuid_count(leaf, 0, &r.a, &r.b, &r.c, &r.d);
    return r;
}

bool has(unsigned word, int bit) { return word >> bit & 1; }

// The register files that the operating system saves: bits 1 and 2 for AVX, 5 to 7 for AVX-512 as well.
unsigned saved_registers() {
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

// The level of the instruction set as in x86-64-v3, by the bits that the processors' manuals give.
int64_t level() {
    Registers one = cpuid(1), seven = cpuid(7), extended = cpuid(0x80000001);
    bool v2 = has(one.c, 0) && has(one.c, 9) && has(one.c, 13) && has(one.c, 19) && has(one.c, 20) && has(one.c, 23) &&
              has(extended.c, 0);
    if (!v2) return 1;
    bool saves = has(one.c, 27) && (saved_registers() & 0x6) == 0x6;
    bool v3 = saves && has(one.c, 12) && has(one.c, 22) && has(one.c, 28) && has(one.c, 29) && has(seven.b, 3) &&
              has(seven.b, 5) && has(seven.b, 8) && has(extended.c, 5);
    if (!v3) return 2;
    bool v4 = (saved_registers() & 0xe6) == 0xe6 && has(seven.b, 16) && has(seven.b, 17) && has(seven.b, 28) &&
              has(seven.b, 30) && has(seven.b, 31);
    return v4 ? 4 : 3;
}

}  // namespace
#endif

// On x86-64 the level, 1 to 4; elsewhere 0.
extern "C" __attribute__((visibility("default"))) int64_t mssvm_cpu_level() {
#if defined(__x86_64__)
    return level();
#else
    return 0;
#endif
}
