#include "tally.hpp"

#include <algorithm>
#include <cmath>

#include "log_bins.hpp"

namespace stepscope {

void Tally::clear() {
    bin_.clear();
    log_.clear();
    before_.resize(1);
}

void Tally::add(std::uint32_t bin, std::int64_t count) {
    bin_.push_back(bin);
    log_.push_back(log_of_middle(bin));
    before_.push_back(before_.back() + count);
}

double Tally::deviation(Slice slice) const {
    // relative to the first one, to avoid cancellation in squares of nearly equal numbers
    const double origin = log_[slice.begin];
    double sum = 0, squares = 0;
    for (std::size_t entry = slice.begin; entry < slice.end; ++entry) {
        const double distance = log_[entry] - origin;
        const double weighted = distance * static_cast<double>(count(entry));
        sum += weighted;
        squares += weighted * distance;
    }
    const auto samples = static_cast<double>(count(slice));
    const double mean = sum / samples;
    return std::sqrt(std::max(0.0, squares / samples - mean * mean));
}

std::size_t Tally::beyond(Slice slice, double distance) const {
    const double *begin = log_.data() + slice.begin, *end = log_.data() + slice.end;
    const double* found =
        std::partition_point(begin, end, [=](double log) { return log - *begin <= distance; });
    return static_cast<std::size_t>(found - log_.data());
}

std::int64_t Tally::at(Slice slice, std::int64_t place) const {
    const std::int64_t *begin = before_.data() + slice.begin, *end = before_.data() + slice.end;
    const std::int64_t wanted = *begin + place;
    const auto entry =
        static_cast<std::size_t>(std::upper_bound(begin, end, wanted) - 1 - before_.data());
    const double inside = static_cast<double>(wanted - before_[entry]) + 0.5;
    const double share = inside / static_cast<double>(count(entry));
    const auto width = static_cast<double>(width_of(bin_[entry]));
    return first_of(bin_[entry]) + static_cast<std::int64_t>(share * width);
}

Mode Tally::mode(Slice slice) const {
    const std::int64_t samples = count(slice);
    return {samples, at(slice, p50_place(samples)), at(slice, p99_place(samples)),
            at(slice, samples - 1)};
}

}  // namespace stepscope
