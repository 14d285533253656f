// The program of an elimination: what every step reads and writes, and the clock of a call.
#pragma once
#include <chrono>

#include "boundary.hpp"

namespace mssvm {

// Index arrays of a plan, as `engines/program.py` describes them.
struct Program {
    int64_t bytes;
    Bytes8 clamped;
    Ints unary_slot, factor_slot, factor_size, entry_at, entry, clamp_ptr, clamp_var, clamp_stride;
    Ints position_ptr, var, card, output, shift_at, shift_size, message_at, message_size, message_input;
    Ints separator_ptr, separator, separator_stride, axis_ptr, axis_size;
    Ints input_ptr, input_at, input_size, level, stride_ptr, stride;
    int64_t n_slots, n_work, n_hidden, max_axes, max_inputs, max_card;

    int64_t steps() const { return var.size; }
    int64_t positions() const { return position_ptr.size - 1; }
    int64_t inputs() const { return level.size; }
};

// How a step computes: sums of probabilities, power sums of scores, maxima of scores.
enum Algebra : int64_t { SCALED, LOG, MAX };

constexpr int64_t ENTRIES_PER_CHECK = 1 << 18;  // doubles between two readings of the clock

// The time that a call may take; without a limit the clock is not read.
class Clock {
public:
    Clock() = default;
    explicit Clock(double seconds) : limited_(true), end_(Time::now() + std::chrono::duration<double>(seconds)) {}

    bool limited() const { return limited_; }
    // Whether time is up, asked after some more entries.
    bool late(int64_t entries) {
        entries_ += entries;
        if (!limited_ || entries_ < ENTRIES_PER_CHECK) return false;
        entries_ = 0;
        return late();
    }
    bool late() const { return limited_ && Time::now() >= end_; }

private:
    using Time = std::chrono::steady_clock;
    bool limited_ = false;
    int64_t entries_ = 0;
    std::chrono::time_point<Time, std::chrono::duration<double>> end_;
};

}  // namespace mssvm
