#include "intervals.hpp"

#include <algorithm>
#include <limits>

namespace stepscope {
namespace {

// How many starts are no later than a position, if about so many are.
std::size_t begun(const Union& intervals, std::size_t guess, std::int64_t position) {
    const std::int64_t* start = intervals.start;
    std::size_t low = guess, high = guess, step = 1;
    while (low > 0 && start[low - 1] > position) {
        high = low - 1;
        low = low > step ? low - step : 0;
        step *= 2;
    }
    while (high < intervals.size && start[high] <= position) {
        low = high + 1;
        high = std::min(high + step, intervals.size);
        step *= 2;
    }
    return static_cast<std::size_t>(std::upper_bound(start + low, start + high, position) - start);
}

}  // namespace

std::int64_t merge(const std::int64_t* start, const std::int64_t* end, std::size_t count,
                   std::int64_t* merged_start, std::int64_t* merged_end) {
    std::int64_t merged = -1;
    std::int64_t last = std::numeric_limits<std::int64_t>::min();
    for (std::size_t at = 0; at < count; ++at) {
        if (end[at] <= start[at]) continue;
        if (start[at] < last) return -1;
        last = start[at];
        if (merged >= 0 && last <= merged_end[merged]) {
            merged_end[merged] = std::max(merged_end[merged], end[at]);
        } else {
            ++merged;
            merged_start[merged] = last;
            merged_end[merged] = end[at];
        }
    }
    return merged + 1;
}

void covered(const Union& intervals, const std::int64_t* position, std::size_t count,
             std::int64_t* out) {
    std::size_t before = 0;
    for (std::size_t at = 0; at < count; ++at) {
        before = begun(intervals, before, position[at]);
        if (before == 0) {
            out[at] = 0;
            continue;
        }
        const std::size_t last = before - 1;
        const std::int64_t reached = std::min(position[at], intervals.end[last]);
        out[at] = intervals.before[last] + reached - intervals.start[last];
    }
}

}  // namespace stepscope
