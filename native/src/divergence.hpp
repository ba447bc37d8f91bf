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

// Rows of `points` values from 0 to WHOLE, one after the other.
struct Rows {
    const std::int16_t* values;
    std::size_t count;
};

// The mean distance of each row to the other rows.
std::vector<double> mean_divergences(Rows rows, std::size_t points);

// The mean distance of each row to some rows, which may be among them.
std::vector<double> mean_divergences_from(Rows rows, Rows some, std::size_t points);

}  // namespace stepscope
