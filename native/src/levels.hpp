// The arithmetic of ARGUS' first two levels (Zhou et al., 2026, section 6.1 and appendix B) on
// columns.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stepscope {

// For every value, the median of the other members of its group, column by column.
//
// `values` and `out` are [groups, members, columns]. A value that is not finite is unknown: it is
// ignored, and has no result. A value without peers has none either.
void peer_medians(const double* values, std::size_t groups, std::size_t members,
                  std::size_t columns, double* out);

// Level 1: for each window of `width` neighbours, whether its largest value exceeds `ratio` times
// its smallest; there are `count - width + 1` windows.
void wide_windows(const double* series, std::size_t count, std::size_t width, double ratio,
                  std::uint8_t* wide);

struct Rise {
    std::size_t split = 0;  // number of values before it; 0 if nothing rises
    double ratio = 0;       // mean after it / mean before it
};

// Level 1: the split with the largest ratio of means, which must be above `least`; on both sides
// the deviation must be below `spread` times the mean.
Rise largest_rise(const double* series, std::size_t count, double least, double spread);

// Groups of ranks: group g has those from order[bounds[g]] up to order[bounds[g + 1]].
struct Groups {
    const std::uint32_t* order;
    const std::uint32_t* bounds;
    std::size_t number;
};

// Level 2, for each of `rows` (phase and window): the deviation over the mean of every group, and
// how many deviations each rank is above its group's mean. `values` and `z` are [rows, ranks], `cv`
// is [rows, groups]; for ranks of no group, `z` is left unchanged.
void imbalances(const float* values, std::size_t rows, std::size_t ranks, const Groups& groups,
                float* cv, float* z);

}  // namespace stepscope
