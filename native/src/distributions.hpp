// Which share of each rank's executions took no longer than a duration: sums of log-normal modes.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "distances.hpp"

namespace stepscope {

// Ranks are handled in blocks of this size. If no mode of a block has begun or all have ended, as
// at nearly every point within another mode, nothing has to be looked up.
constexpr std::size_t RANKS_AT_ONCE = 256;

// The first, second, … modes of some ranks, side by side. A rank with fewer modes has one of weight
// zero.
class ModesSideBySide {
 public:
    ModesSideBySide(const Mixtures& of, double origin, std::size_t first_rank, std::size_t number);
    void add(double log, float* to, std::size_t ranks) const;

 private:
    void put(const Mixtures& of, std::size_t mode, std::size_t at);

    double origin_, begin_ = HUGE_VAL, end_ = -HUGE_VAL;
    std::array<float, RANKS_AT_ONCE> scale_{}, shift_{}, weight_{};
};

// The cumulative distributions of all ranks, at one grid point after the other: within 2e-7.
class Distributions {
 public:
    // The origin is near all points, so that floats can distinguish them.
    Distributions(const Mixtures& of, double origin);
    void at(double log);

    std::vector<float> values;
    float least = 0, most = 0;

 private:
    void find_range();

    std::vector<ModesSideBySide> modes_;
    std::vector<std::size_t> firsts_;  // of the modes of each block of RANKS_AT_ONCE ranks
};

}  // namespace stepscope
