#include "density.hpp"

#include <algorithm>
#include <cmath>

namespace stepscope {
namespace {

constexpr double MARGIN = 3;  // bandwidths before the first sample, and after the last
constexpr double CUT = 5;     // bandwidths; the kernel beyond is below 4e-6 of its peak
// Maximal size of a grid; 512 KB. Histograms never need more. A published group may need more if
// one sample in a million is far away, and then gets fewer steps per bandwidth.
constexpr double MOST_POINTS = 1 << 16;
// The number of taps is a multiple of four, so that a vectorised loop has no remainder.
constexpr std::size_t LANES = 4;

}  // namespace

void Density::lay(double range, double bandwidth, double steps) {
    const double wanted = (range / bandwidth + 2 * MARGIN) * steps;
    step_ = bandwidth / steps * std::max(1.0, wanted / MOST_POINTS);
    per_log_ = 1 / step_;
    margin_ = MARGIN * bandwidth / step_;
    points_ = static_cast<std::size_t>(range * per_log_ + 2 * margin_) + 2;
    if (step_ / bandwidth != ratio_) set_taps(step_ / bandwidth);
    shared_.assign(points_, 0);
}

void Density::set_taps(double ratio) {
    ratio_ = ratio;
    reach_ = static_cast<std::size_t>(std::ceil(CUT / ratio));
    const std::size_t taps = 2 * reach_ + 1;
    taps_.assign((taps + LANES - 1) / LANES * LANES, 0);
    for (std::size_t tap = 0; tap < taps; ++tap) {
        const double away = (static_cast<double>(tap) - static_cast<double>(reach_)) * ratio;
        taps_[tap] = static_cast<float>(std::exp(-0.5 * away * away));
    }
}

void Density::spread() {
    spread_.assign(points_ + taps_.size(), 0);
    const float* __restrict taps = taps_.data();
    const std::size_t width = taps_.size();
    for (std::size_t point = 0; point < points_; ++point) {
        const float weight = shared_[point];
        if (weight == 0) continue;
        float* __restrict to = spread_.data() + point;
        for (std::size_t tap = 0; tap < width; ++tap) to[tap] += weight * taps[tap];
    }
}

}  // namespace stepscope
