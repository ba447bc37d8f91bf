#include "distances.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "distributions.hpp"

namespace stepscope {
namespace {

using Keys = std::vector<std::uint32_t>;
constexpr std::uint32_t DIGIT_BITS = 11, DIGITS = 1u << DIGIT_BITS;
constexpr std::uint32_t LARGEST = (1u << (2 * DIGIT_BITS)) - 1;

// Values from 0 to LARGEST.
void quantise(const Distributions& of, Keys& keys) {
    const float per_unit = static_cast<float>(LARGEST) / (of.most - of.least);
    const auto largest = static_cast<std::int32_t>(LARGEST);
    for (std::size_t rank = 0; rank < keys.size(); ++rank) {
        const auto place = static_cast<std::int32_t>((of.values[rank] - of.least) * per_unit);
        keys[rank] = static_cast<std::uint32_t>(std::min(place, largest));
    }
}

// The contribution of each point to the means: a rank's sum of distances, times `unit`.
using Means = std::vector<double>;

// With fewer ranks, sorting is faster than counting.
constexpr std::size_t FEW = 700;

// By sorting all keys.
class Sorted {
 public:
    explicit Sorted(std::size_t ranks) : ordered_(ranks), half_(ranks) {}

    void add(const Keys& keys, double unit, Means& means) {
        order(keys);
        std::int64_t total = 0;
        for (const std::uint32_t key : keys) total += key;
        std::int64_t before = 0, place = 2 - static_cast<std::int64_t>(keys.size());
        for (const std::uint64_t one : ordered_) {
            const auto value = static_cast<std::int64_t>(one >> 32);
            before += value;
            means[static_cast<std::uint32_t>(one)] +=
                unit * static_cast<double>(place * value + total - 2 * before);
            place += 2;
        }
    }

 private:
    using Counts = std::array<std::uint32_t, DIGITS>;

    // Each key is stored above its rank's number.
    void order(const Keys& keys) {
        low_.fill(0);
        high_.fill(0);
        for (std::size_t rank = 0; rank < keys.size(); ++rank) {
            ++low_[keys[rank] % DIGITS];
            ++high_[keys[rank] / DIGITS];
            ordered_[rank] = (std::uint64_t{keys[rank]} << 32) | rank;
        }
        if (keys.size() < FEW) {
            std::sort(ordered_.begin(), ordered_.end());
            return;
        }
        distribute(ordered_, half_, low_, 32);
        distribute(half_, ordered_, high_, 32 + DIGIT_BITS);
    }
    static void distribute(const std::vector<std::uint64_t>& from, std::vector<std::uint64_t>& to,
                           Counts& counts, std::uint32_t shift) {
        std::uint32_t begin = 0;
        for (std::uint32_t& count : counts) begin += std::exchange(count, begin);
        for (const std::uint64_t key : from) to[counts[(key >> shift) % DIGITS]++] = key;
    }

    std::vector<std::uint64_t> ordered_, half_;
    Counts low_, high_;
};

// By counting keys in cells. The sum of distances to all keys is a convex function of the key. It
// is known at the edges of cells, and between two of them it is below the straight line by at most
// half a cell's width for each key in the cell. So this is only done if cells hold few of the keys.
class Counted {
 public:
    // Counting also takes time per cell.
    static bool is_worth(std::size_t ranks) { return ranks >= CELLS / 2 && ranks < MOST_RANKS; }

    bool add(const Keys& keys, double unit, Means& means) {
        std::fill(cells_.begin(), cells_.end(), 0);
        std::int64_t total = 0;
        for (const std::uint32_t key : keys) {
            cells_[key / WIDTH] += (std::uint64_t{1} << 32) | key % WIDTH;
            total += key;
        }
        if (!sum(static_cast<std::int64_t>(keys.size()), total)) return false;
        constexpr float per_width = 1.0f / WIDTH;
        for (std::size_t rank = 0; rank < keys.size(); ++rank) {
            const std::uint32_t cell = keys[rank] / WIDTH;
            const auto into = static_cast<float>(static_cast<std::int32_t>(keys[rank] % WIDTH));
            const float low = edges_[cell], high = edges_[cell + 1];
            means[rank] += unit * static_cast<double>(low + (high - low) * into * per_width);
        }
        return true;
    }

 private:
    static constexpr std::uint32_t CELL_BITS = 13, CELLS = 1u << CELL_BITS;
    static constexpr std::uint32_t WIDTH = (LARGEST + 1) / CELLS;
    // So that the sum of all keys' offsets within a cell leaves the upper half of the number free.
    static constexpr std::size_t MOST_RANKS = (std::size_t{1} << 32) / WIDTH;
    // The maximal number of keys in one cell.
    static constexpr std::int64_t SHARE = 8;

    // The sums of distances at the edges. At 0 it is the sum of all keys. Over a cell it grows by
    // the cell's width for each key before it, and falls by as much for each key after it.
    bool sum(std::int64_t ranks, std::int64_t total) {
        std::int64_t edge = total, before = 0, most = 0;
        for (std::uint32_t cell = 0; cell < CELLS; ++cell) {
            edges_[cell] = static_cast<float>(edge);
            const std::int64_t count = cells_[cell] >> 32;
            const std::int64_t into = static_cast<std::uint32_t>(cells_[cell]);
            edge += WIDTH * (2 * before + count - ranks) + count * WIDTH - 2 * into;
            before += count;
            most = std::max(most, count);
        }
        edges_[CELLS] = static_cast<float>(edge);
        return most * SHARE <= ranks;
    }

    // Not on the stack, which may be too small.
    std::vector<std::uint64_t> cells_ = std::vector<std::uint64_t>(CELLS);
    std::vector<float> edges_ = std::vector<float>(CELLS + 1);
};

}  // namespace

std::vector<double> mean_distances(const Mixtures& mixtures, const Grid& grid) {
    Means means(mixtures.ranks, 0.0);
    if (mixtures.ranks < 2 || grid.points == 0) return means;
    Distributions distributions(mixtures, grid.logs[0]);
    Keys keys(mixtures.ranks);
    Sorted sorted(mixtures.ranks);
    Counted counted;
    const bool is_many = Counted::is_worth(mixtures.ranks);
    for (std::size_t point = 0; point < grid.points; ++point) {
        distributions.at(grid.logs[point]);
        const double range = double{distributions.most} - double{distributions.least};
        if (!(range > 0)) continue;
        quantise(distributions, keys);
        const double unit =
            grid.weights[point] * range / LARGEST / static_cast<double>(mixtures.ranks - 1);
        if (!is_many || !counted.add(keys, unit, means)) sorted.add(keys, unit, means);
    }
    return means;
}

}  // namespace stepscope
