#include "intervals.hpp"

#include <algorithm>
#include <limits>

namespace stepscope {
namespace {

// How many numbers in order are no larger than a limit, if about so many are.
std::size_t until(const std::int64_t* ordered, std::size_t size, std::size_t guess,
                  std::int64_t limit) {
    std::size_t low = guess, high = guess, step = 1;
    while (low > 0 && ordered[low - 1] > limit) {
        high = low - 1;
        low = low > step ? low - step : 0;
        step *= 2;
    }
    while (high < size && ordered[high] <= limit) {
        low = high + 1;
        high = std::min(high + step, size);
        step *= 2;
    }
    return static_cast<std::size_t>(std::upper_bound(ordered + low, ordered + high, limit) -
                                    ordered);
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

void count_until(const std::int64_t* ordered, std::size_t size, const std::int64_t* limit,
                 std::size_t count, std::int64_t* out) {
    std::size_t found = 0;
    for (std::size_t at = 0; at < count; ++at) {
        found = until(ordered, size, found, limit[at]);
        out[at] = static_cast<std::int64_t>(found);
    }
}

void covered(const Union& intervals, const std::int64_t* position, std::size_t count,
             std::int64_t* out) {
    std::size_t before = 0;
    for (std::size_t at = 0; at < count; ++at) {
        before = until(intervals.start, intervals.size, before, position[at]);
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
