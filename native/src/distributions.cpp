#include "distributions.hpp"

#include <algorithm>
#include <cstdint>

namespace stepscope {
namespace {

// The normal distribution, by linear interpolation between the nearest two of these nodes: within
// 2e-7.
class Normal {
 public:
    static constexpr float REACH = 8, PER_UNIT = 512, LAST = 2 * REACH * PER_UNIT;

    Normal() {
        for (std::size_t at = 0; at < nodes_.size(); ++at)
            nodes_[at] = {static_cast<float>(at_node(at)),
                          static_cast<float>(at_node(at + 1) - at_node(at))};
    }
    // Adds to each rank its weight times the normal distribution at a position among the nodes, z =
    // place / PER_UNIT - REACH with place = shift + distance * scale. In two loops, so that
    // compilers vectorise the first.
    void add(const float* weight, const float* shift, const float* scale, float distance, float* to,
             std::size_t count) const {
        std::array<std::int32_t, RANKS_AT_ONCE> nodes;
        std::array<float, RANKS_AT_ONCE> rests;
        for (std::size_t at = 0; at < RANKS_AT_ONCE; ++at) {
            const float place = std::min(std::max(shift[at] + distance * scale[at], 0.0f), LAST);
            nodes[at] = static_cast<std::int32_t>(place);
            rests[at] = place - static_cast<float>(nodes[at]);
        }
        for (std::size_t at = 0; at < count; ++at) {
            const Node& node = nodes_[static_cast<std::size_t>(nodes[at])];
            to[at] += weight[at] * (node.value + node.rise * rests[at]);
        }
    }

 private:
    static double at_node(std::size_t node) {
        const double z = static_cast<double>(node) / PER_UNIT - REACH;
        return 0.5 * std::erfc(-z / std::sqrt(2.0));
    }

    struct Node {
        float value, rise;
    };
    std::array<Node, static_cast<std::size_t>(LAST) + 1> nodes_;
};

}  // namespace

ModesSideBySide::ModesSideBySide(const Mixtures& of, double origin, std::size_t first_rank,
                                 std::size_t number)
    : origin_(origin) {
    for (std::size_t at = 0; at < RANKS_AT_ONCE && first_rank + at < of.ranks; ++at) {
        const std::size_t mode = of.begins[first_rank + at] + number;
        if (mode < of.begins[first_rank + at + 1]) put(of, mode, at);
    }
}

void ModesSideBySide::put(const Mixtures& of, std::size_t mode, std::size_t at) {
    const double scale = Normal::PER_UNIT / of.sigma[mode];
    const double shift = (origin_ - of.log_p50[mode]) * scale + Normal::REACH * Normal::PER_UNIT;
    scale_[at] = static_cast<float>(scale);
    shift_[at] = static_cast<float>(shift);
    weight_[at] = static_cast<float>(of.weight[mode]);
    const double half = Normal::REACH * of.sigma[mode];
    begin_ = std::min(begin_, of.log_p50[mode] - half);
    end_ = std::max(end_, of.log_p50[mode] + half);
}

void ModesSideBySide::add(double log, float* to, std::size_t ranks) const {
    static const Normal normal;
    if (log <= begin_) return;
    if (log >= end_) {
        for (std::size_t at = 0; at < ranks; ++at) to[at] += weight_[at];
        return;
    }
    const auto distance = static_cast<float>(log - origin_);
    normal.add(weight_.data(), shift_.data(), scale_.data(), distance, to, ranks);
}

Distributions::Distributions(const Mixtures& of, double origin) : values(of.ranks) {
    for (std::size_t first = 0; first < of.ranks; first += RANKS_AT_ONCE) {
        firsts_.push_back(modes_.size());
        std::uint32_t most_modes = 0;
        for (std::size_t rank = first; rank < std::min(first + RANKS_AT_ONCE, of.ranks); ++rank)
            most_modes = std::max(most_modes, of.begins[rank + 1] - of.begins[rank]);
        for (std::uint32_t number = 0; number < most_modes; ++number)
            modes_.emplace_back(of, origin, first, number);
    }
    firsts_.push_back(modes_.size());
}

void Distributions::at(double log) {
    std::fill(values.begin(), values.end(), 0.0f);
    for (std::size_t group = 0; group + 1 < firsts_.size(); ++group) {
        const std::size_t first = group * RANKS_AT_ONCE;
        const std::size_t ranks = std::min(RANKS_AT_ONCE, values.size() - first);
        for (std::size_t modes = firsts_[group]; modes < firsts_[group + 1]; ++modes)
            modes_[modes].add(log, values.data() + first, ranks);
    }
    find_range();
}

// Interleaved: one after the other, each comparison would wait for the one before.
void Distributions::find_range() {
    constexpr std::size_t LANES = 16;
    std::array<float, LANES> lowest, highest;
    lowest.fill(2), highest.fill(-1);
    const std::size_t whole = values.size() / LANES * LANES;
    for (std::size_t first = 0; first < whole; first += LANES)
        for (std::size_t lane = 0; lane < LANES; ++lane) {
            const float value = values[first + lane];
            lowest[lane] = value < lowest[lane] ? value : lowest[lane];
            highest[lane] = value > highest[lane] ? value : highest[lane];
        }
    least = *std::min_element(lowest.begin(), lowest.end());
    most = *std::max_element(highest.begin(), highest.end());
    for (std::size_t rank = whole; rank < values.size(); ++rank) {
        least = std::min(least, values[rank]);
        most = std::max(most, values[rank]);
    }
}

}  // namespace stepscope
