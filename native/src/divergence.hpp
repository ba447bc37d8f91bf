// The mean two-sample Kolmogorov-Smirnov distance of each worker to all others: KAIR (Yang et al.),
// section III-B, stage 1.
//
// A worker is a cumulative distribution F over fixed points of time. D(A, B) = max |F_A - F_B| does
// not decompose, so all pairs are compared, but in 15-bit fixed point (for which even SSE2 has a
// maximum), in blocks that stay in the cache, and each pair once. Lossy: values are rounded to
// 2⁻¹⁵, which bounds the error of a distance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stepscope {

constexpr std::int16_t WHOLE = 32767;  // stands for 1

// The mean distance of each of `workers` rows of `points` values (0 to WHOLE) to the other rows.
std::vector<double> mean_divergences(const std::int16_t* values, std::size_t workers,
                                     std::size_t points);

}  // namespace stepscope
