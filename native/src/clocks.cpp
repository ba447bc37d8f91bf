#include "clocks.hpp"

#include <cmath>

namespace stepscope {
namespace {

// Added and taken off again, it leaves no room for fractions in smaller numbers: an instruction
// each instead of a call.
constexpr double SMALL = 2251799813685248.0;  // 2^51
constexpr double WHOLE = 3 * SMALL;

double rounded(double number) {
    if (!(std::abs(number) < SMALL)) return std::rint(number);
    return (number + WHOLE) - WHOLE;
}

}  // namespace

bool on_one_clock(const Clocks& clocks, const std::int64_t* time, const std::int64_t* clock,
                  std::size_t rows, std::int64_t* out) {
    for (std::size_t row = 0; row < rows; ++row) {
        const std::int64_t own = clock[row];
        if (own < 0 || time[row] == NO_TIME) {
            out[row] = time[row];
            continue;
        }
        if (static_cast<std::size_t>(own) >= clocks.size) return false;
        const auto since = static_cast<double>(time[row] - clocks.origin);
        const double ahead = since * clocks.drift[own] + clocks.offset[own];
        out[row] = time[row] - static_cast<std::int64_t>(rounded(ahead));
    }
    return true;
}

}  // namespace stepscope
