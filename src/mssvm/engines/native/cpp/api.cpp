// What every caller of the library asks first: its version, the lanes of its vectors, and the last error's sentence.
#include "boundary.hpp"
#include "simd.hpp"

using namespace mssvm;

MSSVM_API mssvm_version() { return 1; }

MSSVM_API mssvm_lanes() { return L; }

extern "C" __attribute__((visibility("default"))) const char *mssvm_error() { return last_error().c_str(); }
