// Arithmetic of ARGUS' first two levels (Zhou et al., 2026, section 6.1 and appendix B) on columns.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stepscope {

// For every value the median of the other members of its group, column by column.
//
// `values` and `out` are [groups, members, columns]. What is not finite is unknown: it counts for
// nobody and has no peers; nor has a value that is alone.
void peer_medians(const double* values, std::size_t groups, std::size_t members,
                  std::size_t columns, double* out);

// Level 1: for each window of `width` neighbours whether their largest exceeds `ratio` times their
// smallest; `count - width + 1` of them.
void wide_windows(const double* series, std::size_t count, std::size_t width, double ratio,
                  std::uint8_t* wide);

struct Rise {
    std::size_t split = 0;  // values before it; 0 where nothing rises
    double ratio = 0;       // mean after, over mean before
};

// Level 1: the split with the largest ratio of means above `least`, where on both sides the
// deviation is below `spread` times the mean.
Rise largest_rise(const double* series, std::size_t count, double least, double spread);

// Groups of ranks: those at order[bounds[g]] up to order[bounds[g + 1]].
struct Groups {
    const std::uint32_t* order;
    const std::uint32_t* bounds;
    std::size_t number;
};

// Level 2, for each of `rows` (phase and window): deviation over mean of every group, and how many
// deviations each rank lies above its group's mean. `values` and `z` are [rows, ranks], `cv` is
// [rows, groups]; ranks of no group keep what `z` holds.
void imbalances(const float* values, std::size_t rows, std::size_t ranks, const Groups& groups,
                float* cv, float* z);

}  // namespace stepscope
