// Converts times of many clocks to one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace stepscope {

constexpr std::int64_t NO_TIME = std::numeric_limits<std::int64_t>::min();

// How far each clock is ahead: an offset, and a drift since the origin.
struct Clocks {
    std::int64_t origin;
    const double* offset;
    const double* drift;
    std::size_t size;
};

// Takes off what each row's clock is ahead, rounded half to even; times that are `NO_TIME` and
// those of clocks below 0 stay. As numpy does it, with the same rounding, but in one pass.
//
// Returns whether all clocks are known; otherwise nothing is known of `out`.
bool on_one_clock(const Clocks& clocks, const std::int64_t* time, const std::int64_t* clock,
                  std::size_t rows, std::int64_t* out);

}  // namespace stepscope
