// Earliest starts and slacks of the passes of many pipelines: the critical path method of Kelley
// and Walker (1959), which VenusTrace (Jiao et al., 2025) uses in its algorithm 3.
//
// All pipelines (lanes) run the same passes in the same order, so the passes are gone through once,
// forwards and backwards, and the lanes are next to each other in memory:
//
//     start = max(end of the passes before) + lead        end = start + duration
//     slack = latest start - start                        latest end = min(latest start - lead) of
//                                                         the passes after, or the lane's last end
//
// Times are whole nanoseconds, so a slack of 0 is exact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stepscope {

constexpr std::size_t BEFORE = 2;  // passes that one waits for: the rank's last, and its input

// The passes in an order in which each comes after those that it waits for.
struct PassOrder {
    const std::uint32_t* order;
    const std::int32_t* before;  // [passes, BEFORE]; -1: none
    std::size_t passes;
};

// How long passes take and how long after the passes before them they begin.
struct PassTimes {
    const std::int64_t* durations;  // [passes, members, lanes]; that of the slowest member counts
    const std::int64_t* leads;      // [passes, lanes]; null: none
    std::size_t members, lanes;
};

struct Slacks {
    std::vector<std::int64_t> starts, slacks;  // [passes, lanes]
    std::vector<std::int64_t> ends;            // of each lane
};

Slacks slacks_of(const PassOrder& order, const PassTimes& times);

}  // namespace stepscope
