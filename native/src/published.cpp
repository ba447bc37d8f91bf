#include "published.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "log_bins.hpp"
#include "scott.hpp"

namespace stepscope {
namespace {

// Every valley counts, so the curve must be precise: 0.2 % of a sample's peak. The paper gives no
// grid.
constexpr double STEPS = 8;

}  // namespace

void Published::add_rows(const std::int64_t* durations, std::size_t samples, std::int64_t group,
                         std::vector<Row>& rows) {
    logs_.resize(samples);
    logarithms(durations, samples, logs_.data());
    const double bandwidth = scott(deviation(), static_cast<std::int64_t>(samples));
    sort_by_cell(durations, fill_cells(bandwidth));
    ends_.clear();
    if (bandwidth > 0) choose_valleys();
    ends_.push_back(static_cast<std::int64_t>(samples));
    std::int64_t begin = 0;
    for (std::size_t cluster = 0; cluster < ends_.size(); ++cluster) {
        rows.push_back({group, static_cast<std::int64_t>(cluster), mode(begin, ends_[cluster])});
        begin = ends_[cluster];
    }
}

// Computes the logarithms, and the smallest and the largest one.
double Published::deviation() {
    // relative to one of them, to avoid cancellation in squares of nearly equal numbers
    const double origin = shortest_ = longest_ = logs_.front();
    double sum = 0, squares = 0;
    for (const double log : logs_) {
        const double distance = log - origin;
        sum += distance;
        squares += distance * distance;
        shortest_ = std::min(shortest_, log);
        longest_ = std::max(longest_, log);
    }
    const auto samples = static_cast<double>(logs_.size());
    const double mean = sum / samples;
    return std::sqrt(std::max(0.0, squares / samples - mean * mean));
}

// Returns the number of cells. Without a bandwidth all durations are equal, and are in one cell.
std::size_t Published::fill_cells(double bandwidth) {
    cells_.assign(logs_.size(), 0);
    if (bandwidth == 0) return 1;
    density_.lay(longest_ - shortest_, bandwidth, STEPS);
    for (std::size_t at = 0; at < logs_.size(); ++at) {
        const double place = density_.place(logs_[at] - shortest_);
        density_.share(place, 1);
        cells_[at] = static_cast<std::uint32_t>(place);
    }
    density_.spread();
    return density_.points();
}

void Published::sort_by_cell(const std::int64_t* durations, std::size_t cells) {
    before_.assign(cells + 2, 0);
    for (const std::uint32_t cell : cells_) ++before_[cell + 2];
    for (std::size_t cell = 2; cell < before_.size(); ++cell) before_[cell] += before_[cell - 1];
    sorted_.resize(cells_.size());
    // each count advances from the start of a cell to the start of the next
    for (std::size_t at = 0; at < cells_.size(); ++at)
        sorted_[static_cast<std::size_t>(before_[cells_[at] + 1]++)] = durations[at];
}

void Published::choose_valleys() {
    const std::int64_t samples = before_.back(), least = least_samples(samples);
    double last = -std::numeric_limits<double>::infinity();
    each_valley(density_, [&](std::size_t point) {
        const std::int64_t begin = ends_.empty() ? 0 : ends_.back(), end = before_[point];
        const double distance = density_.distance(point);
        if (end - begin < least || samples - end < least) return;
        if (distance - last < LEAST_SPACING) return;
        ends_.push_back(end);
        last = distance;
    });
}

Mode Published::mode(std::int64_t begin, std::int64_t end) {
    const std::int64_t samples = end - begin;
    return {samples, at(begin + p50_place(samples)), at(begin + p99_place(samples)), at(end - 1)};
}

// The duration at a position in the sorted order.
std::int64_t Published::at(std::int64_t place) {
    const auto next = std::upper_bound(before_.begin(), before_.end(), place);
    const auto begin = sorted_.begin() + *(next - 1), wanted = sorted_.begin() + place;
    std::nth_element(begin, wanted, sorted_.begin() + *next);
    return *wanted;
}

}  // namespace stepscope
