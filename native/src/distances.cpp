#include "distances.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace stepscope {
namespace {

// The normal distribution by its value and slope at the nearest of these nodes: within 2e-7.
class Normal {
 public:
    static constexpr float REACH = 8, PER_UNIT = 64, LAST = 2 * REACH * PER_UNIT;

    Normal() {
        for (std::size_t at = 0; at < nodes_.size(); ++at) {
            const double z = static_cast<double>(at) / PER_UNIT - REACH;
            nodes_[at] = {static_cast<float>(0.5 * std::erfc(-z / std::sqrt(2.0))),
                          static_cast<float>(std::exp(-0.5 * z * z) / std::sqrt(2.0 * PI))};
        }
    }
    // Of a place among the nodes, z = place / PER_UNIT - REACH.
    float operator()(float place) const {
        place = std::min(std::max(place, 0.0f), LAST);
        const auto at = static_cast<std::int32_t>(place + 0.5f);
        const auto whole = static_cast<float>(at);
        const float rest = (place - whole) / PER_UNIT, z = whole / PER_UNIT - REACH;
        const Node& node = nodes_[static_cast<std::size_t>(at)];
        return node.value + node.slope * rest * (1.0f - 0.5f * z * rest);
    }

 private:
    static constexpr double PI = 3.14159265358979323846;
    struct Node {
        float value, slope;
    };
    std::array<Node, static_cast<std::size_t>(LAST) + 1> nodes_;
};

// All ranks' cumulative distributions, one point of the grid after the other.
class Distributions {
 public:
    Distributions(const Mixtures& of, double origin)
        : begins_(of.begins), origin_(origin), values(of.ranks) {
        for (std::size_t mode = 0; mode < of.begins[of.ranks]; ++mode) {
            const double scale = Normal::PER_UNIT / of.sigma[mode];
            const double shift =
                (origin - of.log_p50[mode]) * scale + Normal::REACH * Normal::PER_UNIT;
            modes_.push_back({static_cast<float>(scale), static_cast<float>(shift),
                              static_cast<float>(of.weight[mode])});
        }
        parts_.resize(modes_.size());
    }

    void at(double log) {
        static const Normal normal;
        const auto distance = static_cast<float>(log - origin_);
        for (std::size_t mode = 0; mode < modes_.size(); ++mode) {
            const Mode& one = modes_[mode];
            parts_[mode] = one.weight * normal(one.shift + distance * one.scale);
        }
        least = 2, most = -1;
        std::uint32_t mode = begins_[0];
        for (std::size_t rank = 0; rank < values.size(); ++rank) {
            float sum = 0;
            for (const std::uint32_t end = begins_[rank + 1]; mode < end; ++mode)
                sum += parts_[mode];
            values[rank] = sum;
            least = std::min(least, sum);
            most = std::max(most, sum);
        }
    }

 private:
    struct Mode {
        float scale, shift, weight;
    };
    const std::uint32_t* begins_;
    double origin_;
    std::vector<Mode> modes_;
    std::vector<float> parts_;

 public:
    std::vector<float> values;
    float least = 0, most = 0;
};

constexpr std::uint32_t DIGIT_BITS = 11, DIGITS = 1u << DIGIT_BITS;
constexpr std::uint32_t LARGEST = (1u << (2 * DIGIT_BITS)) - 1;
// Of fewer ranks comparing is faster than counting.
constexpr std::size_t FEW = 700;

// Values in order: each one's key, from 0 to LARGEST, above its rank's number.
class Order {
 public:
    explicit Order(std::size_t ranks) : keys(ranks), sorted_(ranks) {}

    void sort(const Distributions& of) {
        low_.fill(0);
        high_.fill(0);
        total = 0;
        const float per_unit = static_cast<float>(LARGEST) / (of.most - of.least);
        for (std::size_t rank = 0; rank < keys.size(); ++rank) {
            const float place = (of.values[rank] - of.least) * per_unit;
            const std::uint32_t key = std::min(static_cast<std::uint32_t>(place), LARGEST);
            ++low_[key % DIGITS];
            ++high_[key / DIGITS];
            total += key;
            keys[rank] = (std::uint64_t{key} << 32) | rank;
        }
        if (keys.size() < FEW) {
            std::sort(keys.begin(), keys.end());
            return;
        }
        distribute(keys, sorted_, low_, 32);
        distribute(sorted_, keys, high_, 32 + DIGIT_BITS);
    }

 private:
    using Counts = std::array<std::uint32_t, DIGITS>;

    static void distribute(const std::vector<std::uint64_t>& from, std::vector<std::uint64_t>& to,
                           Counts& counts, std::uint32_t shift) {
        std::uint32_t begin = 0;
        for (std::uint32_t& count : counts) begin += std::exchange(count, begin);
        for (const std::uint64_t key : from) to[counts[(key >> shift) % DIGITS]++] = key;
    }

 public:
    std::vector<std::uint64_t> keys;
    std::int64_t total = 0;  // of the keys

 private:
    std::vector<std::uint64_t> sorted_;
    Counts low_, high_;
};

}  // namespace

std::vector<double> mean_distances(const Mixtures& mixtures, const Grid& grid) {
    const auto ranks = static_cast<std::int64_t>(mixtures.ranks);
    std::vector<double> mean(mixtures.ranks, 0.0);
    if (ranks < 2 || grid.points == 0) return mean;
    Distributions distributions(mixtures, grid.logs[0]);
    Order order(mixtures.ranks);
    for (std::size_t point = 0; point < grid.points; ++point) {
        distributions.at(grid.logs[point]);
        const double range = double{distributions.most} - double{distributions.least};
        if (!(range > 0)) continue;
        order.sort(distributions);
        const double unit = grid.weights[point] * range / LARGEST / static_cast<double>(ranks - 1);
        std::int64_t before = 0, place = 2 - ranks;
        for (const std::uint64_t key : order.keys) {
            const auto value = static_cast<std::int64_t>(key >> 32);
            before += value;
            mean[static_cast<std::uint32_t>(key)] +=
                unit * static_cast<double>(place * value + order.total - 2 * before);
            place += 2;
        }
    }
    return mean;
}

}  // namespace stepscope
