// Kernel density of log-durations on an evenly spaced grid: ARGUS, section 5.2, eq. 1.
//
//     f(x) = Σ count · exp(−½ ((x − log) / h)²)        the factor 1 / (n h √2π) does not matter
//     here
//
// Each sample is divided between its two neighbours on the grid, and then each grid point is spread
// by a Gaussian. Lossy: with s steps per h, a sample's curve is off by less than 1 / (8 s²) of its
// peak, and by 4e-6 where it is cut off. Cost: samples + 10 s · points in use.
#pragma once

#include <cstddef>
#include <vector>

namespace stepscope {

class Density {
 public:
    // An empty grid for samples in a range, with this many steps per bandwidth.
    void lay(double range, double bandwidth, double steps);
    // The position on the grid of a sample that is this much longer than the shortest.
    double place(double distance) const { return distance * per_log_ + margin_; }
    void share(double place, double count) {
        const auto point = static_cast<std::size_t>(place);
        const double right = count * (place - static_cast<double>(point));
        shared_[point] += static_cast<float>(count - right);
        shared_[point + 1] += static_cast<float>(right);
    }
    void spread();

    std::size_t points() const { return points_; }
    float operator[](std::size_t point) const { return spread_[point + reach_]; }
    // How far a point is beyond the shortest sample: the inverse of place.
    double distance(std::size_t point) const {
        return (static_cast<double>(point) - margin_) * step_;
    }

 private:
    void set_taps(double ratio);

    std::vector<float> shared_, spread_, taps_;
    std::size_t points_ = 0, reach_ = 0;
    double step_ = 0, per_log_ = 0, margin_ = 0;
    double ratio_ = 0;  // step / bandwidth for which the taps were computed
};

// Visits every local minimum from left to right; if a minimum is flat, its middle.
template <class Visit>
void each_valley(const Density& density, Visit&& visit) {
    for (std::size_t point = 1; point + 1 < density.points(); ++point) {
        if (!(density[point] < density[point - 1])) continue;
        std::size_t last = point;
        while (last + 1 < density.points() && density[last + 1] == density[point]) ++last;
        if (last + 1 < density.points() && density[last + 1] > density[point])
            visit((point + last) / 2);
        point = last;
    }
}

}  // namespace stepscope
