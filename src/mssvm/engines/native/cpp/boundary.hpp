// The border between Python and C++: a function takes one record of numbers and arrays and returns a number.
//
// A record is a struct whose first field is its own size in bytes; `library.py` builds the same struct from a list of
// names and kinds. A negative return value is an error, and `mssvm_error` has its sentence. No Python headers: any
// Python can load the library, and ctypes releases the interpreter lock for the time of a call.
#pragma once
#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>

namespace mssvm {

// A contiguous array that Python owns.
template <class T> struct View {
    T *data;
    int64_t size;

    T &operator[](int64_t i) const { return data[i]; }
    T *begin() const { return data; }
    T *end() const { return data + size; }
    bool empty() const { return size == 0; }
    View part(int64_t first, int64_t count) const { return {data + first, count}; }
};

using Floats = View<double>;
using Ints = View<int64_t>;
using Shorts = View<int32_t>;
using Bytes8 = View<uint8_t>;  // masks: 0 or 1; also raw bytes

// The call asks for something that the function does not do; the message says what.
struct Refused : std::runtime_error {
    using std::runtime_error::runtime_error;
};

inline void require(bool condition, const char *message) {
    if (!condition) throw Refused(message);
}

// A record that another one points to.
template <class Record> const Record &nested(const Record *record) {
    require(record != nullptr, "a record that this one points to is missing.");
    require(record->bytes == int64_t(sizeof(Record)), "a record has another size: Python files and library differ.");
    return *record;
}

constexpr int64_t REFUSED = -1, NO_MEMORY = -2, FAILED = -3;

inline std::string &last_error() {
    thread_local std::string message;
    return message;
}

// Runs f(record) and turns exceptions into error codes. Record must begin with `int64_t bytes`.
template <class Record, class F> int64_t guarded(Record *record, F f) {
    try {
        require(record != nullptr, "no record was given.");
        require(record->bytes == int64_t(sizeof(Record)),
                "the record has another size: Python files and library differ.");
        return f(*record);
    } catch (const Refused &error) {
        last_error() = error.what();
        return REFUSED;
    } catch (const std::bad_alloc &) {
        last_error() = "out of memory.";
        return NO_MEMORY;
    } catch (const std::exception &error) {
        last_error() = error.what();
        return FAILED;
    }
}

}  // namespace mssvm

#define MSSVM_API extern "C" __attribute__((visibility("default"))) int64_t
