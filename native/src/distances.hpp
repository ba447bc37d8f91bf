// The distance of each rank's durations from those of all others: ARGUS (Zhou et al., 2026),
// section 6.2.
//
// A rank's durations are a mixture of log-normal modes. The Wasserstein-1 distance of two ranks is
// the area between their cumulative distributions F. With the N values at one grid point in order,
//
//     Σⱼ |vₖ − vⱼ| = (2k + 2 − N) vₖ + T − 2 Pₖ        T: sum of all, Pₖ: of the first k + 1
//
// so all mean distances cost one sort per grid point instead of N² differences. Lossy: a value is
// rounded to 2⁻²² of the range at its grid point, which bounds the error of any distance there. If
// there are many ranks, values are not even sorted but counted in 2¹³ cells, provided that no cell
// holds more than an eighth of all values: then the error is at most 2⁻¹⁷ of that range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stepscope {

// The modes of all ranks, rank by rank; those of rank i are from begins[i] up to begins[i + 1].
struct Mixtures {
    const std::uint32_t* begins;
    std::size_t ranks;
    const double* log_p50;
    const double* sigma;
    const double* weight;
};

// Logarithms of durations, and the weight of each in the integral.
struct Grid {
    const double* logs;
    const double* weights;
    std::size_t points;
};

// The mean distance of each rank to the others, in the unit of the grid's weights.
std::vector<double> mean_distances(const Mixtures& mixtures, const Grid& grid);

}  // namespace stepscope
