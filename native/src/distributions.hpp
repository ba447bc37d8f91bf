// What part of each rank's executions took no longer than a duration: sums of log-normal modes.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include "distances.hpp"

namespace stepscope {

// So many ranks at a time: where none of their modes has begun or all have ended, as at nearly
// every point that lies in another mode, nothing is to be looked up.
constexpr std::size_t RANKS_AT_ONCE = 256;

// The first, second, ... modes of some ranks, side by side; a rank that has fewer has one that
// counts nothing.
class ModesSideBySide {
 public:
    ModesSideBySide(const Mixtures& of, double origin, std::size_t first_rank, std::size_t number);
    void add(double log, float* to, std::size_t ranks) const;

 private:
    void put(const Mixtures& of, std::size_t mode, std::size_t at);

    double origin_, begin_ = HUGE_VAL, end_ = -HUGE_VAL;
    std::array<float, RANKS_AT_ONCE> scale_{}, shift_{}, weight_{};
};

// All ranks' cumulative distributions, one point of the grid after the other: within 2e-7.
class Distributions {
 public:
    // The origin is near all points, so that floats tell them apart.
    Distributions(const Mixtures& of, double origin);
    void at(double log);

    std::vector<float> values;
    float least = 0, most = 0;

 private:
    void find_range();

    std::vector<ModesSideBySide> modes_;
    std::vector<std::size_t> firsts_;  // of each RANKS_AT_ONCE ranks' modes
};

}  // namespace stepscope
