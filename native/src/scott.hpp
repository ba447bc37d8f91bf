// Shared by both methods to find modes: the bandwidth, and the criteria for a mode.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace stepscope {

// Scott's rule as printed in the paper (ARGUS, section 5.2).
inline double scott(double deviation, std::int64_t samples) {
    return 1.06 * deviation * std::pow(static_cast<double>(samples), -0.2);
}

// The paper's "sufficient samples", for which it gives no figure. The 99th percentile of fewer than
// five is meaningless; with at least a hundredth of the group each, there are at most a hundred
// modes.
inline std::int64_t least_samples(std::int64_t samples) {
    return std::max<std::int64_t>(5, (samples + 99) / 100);
}

// The paper's "sufficiently significant" difference, for which it gives no figure: a tenth.
const double LEAST_SPACING = std::log(1.10);

}  // namespace stepscope
