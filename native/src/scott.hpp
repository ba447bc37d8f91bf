// What both ways to find modes share: the bandwidth, and what makes a mode.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace stepscope {

// Scott's rule as the paper prints it (ARGUS, section 5.2).
inline double scott(double deviation, std::int64_t samples) {
    return 1.06 * deviation * std::pow(static_cast<double>(samples), -0.2);
}

// "Sufficient samples" of the paper, which gives no figure. A mode of fewer than five has no 99th
// percentile to speak of; with a hundredth of the group at least there are a hundred modes at most.
inline std::int64_t least_samples(std::int64_t samples) {
    return std::max<std::int64_t>(5, (samples + 99) / 100);
}

// "Sufficiently significant" difference of the paper, which gives no figure: a tenth.
const double LEAST_SPACING = std::log(1.10);

}  // namespace stepscope
