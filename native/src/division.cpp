#include "division.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "scott.hpp"

namespace stepscope {
namespace {

// A sample's curve is off by 0.8 % of its peak, and a valley must be 30 % deep.
constexpr double STEPS = 4;
// A valley of 0.7 of both peaks split 99.75 % of synthetic groups correctly (algorithm notes).
constexpr double DEEP = 0.7;
// Standard deviations between a peak and a valley. At 2.5, at most 0.5 % of synthetic groups with
// one mode are split (normal, skewed, heavy-tailed, flat; narrow and wide; 20 to 10,000 samples);
// at 0 up to 10 %; at 3 a second mode of ten samples in a hundred is mostly missed.
constexpr double NOT_CHANCE = 2.5;
// Bins are up to 1/128 wide; with this bandwidth, a comb of that spacing causes ripples of 5e-9.
constexpr double LEAST_BANDWIDTH = 1.0 / 128;
// In traces of NVIDIA GPUs durations are multiples of 32 ns: a comb for short kernels.
constexpr double TICK_NS = 32;

// Whether a valley may be due to chance. A point of the curve is a sum of exp(-u²/2); for samples
// that fall at random, its variance is its mean over √2.
bool by_chance(double low, double peak) {
    return peak - low < NOT_CHANCE * std::sqrt((peak + low) / std::sqrt(2.0));
}

}  // namespace

void Division::add_rows(const Tally& tally, std::int64_t group, std::vector<Row>& rows) {
    divide(tally, least_samples(tally.count(tally.whole())));
    join_near(tally);
    std::size_t begin = 0;
    for (std::size_t mode = 0; mode < ends_.size(); ++mode) {
        rows.push_back({group, static_cast<std::int64_t>(mode), tally.mode({begin, ends_[mode]})});
        begin = ends_[mode];
    }
}

void Division::divide(const Tally& tally, std::int64_t least) {
    ends_.clear();
    pending_.assign(1, tally.whole());
    while (!pending_.empty()) {
        const Slice slice = pending_.back();
        pending_.pop_back();
        const std::size_t cut = deepest_valley(tally, slice, least);
        if (cut == slice.end) {
            ends_.push_back(cut);
        } else {
            pending_.push_back({cut, slice.end});
            pending_.push_back({slice.begin, cut});
        }
    }
}

// The first entry after the valley; the slice's end if there is none. Modes far apart make the
// bandwidth wide. If it would blur neighbours, or a valley may be due to chance, it is tried again
// with half of it.
std::size_t Division::deepest_valley(const Tally& tally, Slice slice, std::int64_t least) {
    if (tally.count(slice) < 2 * least) return slice.end;
    const double tick = TICK_NS / static_cast<double>(tally.mode(slice).p50_ns);
    const double floor = std::max(LEAST_BANDWIDTH, tick);
    const double bandwidth = std::max(scott(tally.deviation(slice), tally.count(slice)), floor);
    estimate(tally, slice, bandwidth);
    Found found = search(tally, slice, least);
    const bool unclear = found.doubtful || bandwidth > LEAST_SPACING / 2;
    if (found.cut == slice.end && unclear && bandwidth > floor) {
        estimate(tally, slice, std::max(bandwidth / 2, floor));
        found = search(tally, slice, least);
    }
    return found.cut;
}

Division::Found Division::search(const Tally& tally, Slice slice, std::int64_t least) const {
    Found found{slice.end, false};
    std::size_t seen = 0;
    double depth = DEEP, highest = 0;
    each_valley(density_, [&](std::size_t point) {
        for (; seen < point; ++seen) highest = std::max<double>(highest, density_[seen]);
        const double peak = std::min<double>(highest, highest_behind_[point]);
        const double low = density_[point];
        if (low >= depth * peak) return;
        const std::size_t cut = tally.beyond(slice, density_.distance(point));
        const Slice left{slice.begin, cut}, right{cut, slice.end};
        if (tally.count(left) < least || tally.count(right) < least) return;
        if (by_chance(low, peak)) {
            found.doubtful = true;
            return;
        }
        found.cut = cut;
        depth = low / peak;
    });
    return found;
}

void Division::estimate(const Tally& tally, Slice slice, double bandwidth) {
    const double origin = tally.log(slice.begin);
    density_.lay(tally.log(slice.end - 1) - origin, bandwidth, STEPS);
    for (std::size_t entry = slice.begin; entry < slice.end; ++entry)
        density_.share(density_.place(tally.log(entry) - origin),
                       static_cast<double>(tally.count(entry)));
    density_.spread();
    highest_behind_.resize(density_.points());
    float highest = 0;
    for (std::size_t point = density_.points(); point-- > 0;)
        highest_behind_[point] = highest = std::max(highest, density_[point]);
}

// Modes whose medians are within the spacing become one, the nearest first.
void Division::join_near(const Tally& tally) {
    while (ends_.size() > 1) {
        std::size_t nearest = 0;
        double least = std::numeric_limits<double>::infinity(), previous = -least;
        for (std::size_t mode = 0; mode < ends_.size(); ++mode) {
            const Slice slice{mode == 0 ? 0 : ends_[mode - 1], ends_[mode]};
            const double middle = std::log(static_cast<double>(tally.mode(slice).p50_ns));
            if (middle - previous < least) least = middle - previous, nearest = mode;
            previous = middle;
        }
        if (least >= LEAST_SPACING) return;
        ends_.erase(ends_.begin() + static_cast<std::ptrdiff_t>(nearest) - 1);
    }
}

}  // namespace stepscope
