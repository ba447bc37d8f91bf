#include "levels.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace stepscope {
namespace {

// Also compiled for wider vectors; the choice is made when the module is loaded.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define STEPSCOPE_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define STEPSCOPE_WIDE
#endif

constexpr double UNKNOWN = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t LANES = 8;  // columns that share a cache line

void sort_few(double* begin, double* end) {
    for (double* at = begin + 1; at < end; ++at) {
        const double value = *at;
        double* to = at;
        for (; to > begin && to[-1] > value; --to) *to = to[-1];
        *to = value;
    }
}

// Partitions without branches that depend on values; returns the first element of the second part.
template <class Belongs>
double* bring_forward(double* begin, double* end, Belongs&& belongs) {
    double* other = begin;
    for (double* at = begin; at < end; ++at) {
        const double value = *at;
        *at = *other;
        *other = value;
        other += belongs(value) ? 1 : 0;
    }
    return other;
}

// Moves the value that belongs at `place` there, with smaller ones before it: quickselect that
// separates values equal to the pivot, so that many equal values do not slow it down.
void select(double* begin, double* place, double* end) {
    constexpr std::ptrdiff_t FEW = 16;
    while (end - begin > FEW) {
        const double a = *begin, b = begin[(end - begin) / 2], c = end[-1];
        const double pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
        double* less = bring_forward(begin, end, [pivot](double value) { return value < pivot; });
        if (place < less) {
            end = less;
            continue;
        }
        begin = bring_forward(less, end, [pivot](double value) { return value <= pivot; });
        if (place < begin) return;
    }
    sort_few(begin, end);
}

// The medians of sets without one of their values, one set per column. Which value is the median
// depends only on whether the missing one is below or above.
struct Middles {
    std::array<double, LANES> pivot, less, equal, greater;

    void set(std::size_t lane, double* values, std::size_t count) {
        pivot[lane] = 0;
        less[lane] = equal[lane] = greater[lane] = UNKNOWN;
        if (count < 2) return;
        double* middle = values + count / 2;
        select(values, middle, values + count);
        const double below = *std::max_element(values, middle);
        if (count % 2 == 0) {
            pivot[lane] = below;
            less[lane] = equal[lane] = *middle;
            greater[lane] = below;
            return;
        }
        const double above = *std::min_element(middle + 1, values + count);
        pivot[lane] = *middle;
        less[lane] = (*middle + above) / 2;
        equal[lane] = (below + above) / 2;
        greater[lane] = (below + *middle) / 2;
    }

    double without(std::size_t lane, double value) const {
        double median = value < pivot[lane] ? less[lane] : equal[lane];
        median = value > pivot[lane] ? greater[lane] : median;
        return value - value == 0 ? median : UNKNOWN;
    }
};

// One group's medians, for up to LANES columns.
class Lanes {
 public:
    explicit Lanes(std::size_t members) : members_(members), known_(LANES * stride()) {}

    void write(const double* values, std::size_t columns, std::size_t width, double* out) {
        if (width == LANES) return write_many<LANES>(values, columns, out);
        for (std::size_t lane = 0; lane < width; ++lane)
            write_many<1>(values + lane, columns, out + lane);
    }

 private:
    template <std::size_t WIDTH>
    void write_many(const double* values, std::size_t columns, double* out) {
        std::array<std::size_t, WIDTH> counts{};
        for (std::size_t member = 0; member < members_; ++member)
            for (std::size_t lane = 0; lane < WIDTH; ++lane) {
                const double value = values[member * columns + lane];
                known_[lane * stride() + counts[lane]] = value;
                counts[lane] += std::isfinite(value) ? 1 : 0;
            }
        Middles middles;
        for (std::size_t lane = 0; lane < WIDTH; ++lane)
            middles.set(lane, known_.data() + lane * stride(), counts[lane]);
        for (std::size_t member = 0; member < members_; ++member)
            for (std::size_t lane = 0; lane < WIDTH; ++lane)
                out[member * columns + lane] =
                    middles.without(lane, values[member * columns + lane]);
    }

    // one more element, because a value is written before it is known to be finite
    std::size_t stride() const { return members_ + 1; }

    std::size_t members_;
    std::vector<double> known_;
};

STEPSCOPE_WIDE void join_largest(double* values, std::size_t ahead, std::size_t count) {
    for (std::size_t at = 0; at < count; ++at)
        values[at] = values[at] > values[at + ahead] ? values[at] : values[at + ahead];
}

STEPSCOPE_WIDE void join_smallest(double* values, std::size_t ahead, std::size_t count) {
    for (std::size_t at = 0; at < count; ++at)
        values[at] = values[at] < values[at + ahead] ? values[at] : values[at + ahead];
}

// Stores the largest (or smallest) value of each window in its first element. Spans are doubled,
// and the last two may overlap.
template <class Join>
void join_windows(double* values, std::size_t windows, std::size_t width, Join&& join) {
    std::size_t span = 1;
    for (; 2 * span <= width; span *= 2) join(values, span, windows + width - 2 * span);
    join(values, width - span, windows);
}

// With several partial sums, which can be added in parallel.
template <class Number, class Term>
Number sum_of(std::size_t count, Term&& term) {
    std::array<Number, LANES> parts{};
    std::size_t at = 0;
    for (; at + LANES <= count; at += LANES)
        for (std::size_t lane = 0; lane < LANES; ++lane) parts[lane] += term(at + lane);
    Number total = 0;
    for (const Number part : parts) total += part;
    for (; at < count; ++at) total += term(at);
    return total;
}

// Sums of a series and of its squares, relative to its first value to avoid cancellation.
struct Whole {
    double count, origin, total, squares;
    double limit;  // of a side's variance, in squares of its mean
};

// How far a split is from being a stable rise by more than a ratio: above 0 if it is one.
// Multiplied by counts to avoid divisions.
inline double slack(const Whole& whole, double ratio, double before, double total, double squares) {
    const double after = whole.count - before, rest = whole.total - total;
    const double left = whole.origin * before + total, right = whole.origin * after + rest;
    const double before_scatter = squares * before - total * total;
    const double after_scatter = (whole.squares - squares) * after - rest * rest;
    const double steady = std::min(whole.limit * left * left - before_scatter,
                                   whole.limit * right * right - after_scatter);
    return std::min(std::min(steady, left), right * before - ratio * left * after);
}

// Sums of all values before each split of a tile.
struct Tile {
    static constexpr std::size_t SIZE = 256;

    double first = 0;
    std::array<double, SIZE> totals{}, squares{};
};

STEPSCOPE_WIDE bool any_rise(const Whole& whole, double ratio, const Tile& tile) {
    std::array<double, LANES> best{};
    const double* totals = tile.totals.data();
    const double* squares = tile.squares.data();
    for (std::size_t at = 0; at < Tile::SIZE; at += LANES)
        for (std::size_t lane = 0; lane < LANES; ++lane) {
            const double before = tile.first + static_cast<double>(static_cast<int>(at + lane));
            const double found = slack(whole, ratio, before, totals[at + lane], squares[at + lane]);
            best[lane] = found > best[lane] ? found : best[lane];
        }
    return std::any_of(best.begin(), best.end(), [](double found) { return found > 0; });
}

class Splits {
 public:
    Splits(const double* series, std::size_t count, double spread)
        : series_(series), count_(count) {
        whole_ = {static_cast<double>(count), series[0], 0, 0, spread * spread};
        for (std::size_t first = 0; first < count; first += NEAR)
            add(series + first, std::min(NEAR, count - first));
    }

    Rise best(double least) {
        Rise rise{0, least};
        for (std::size_t first = 1; first < count_; first += Tile::SIZE) {
            const std::size_t splits = std::min(Tile::SIZE, count_ - first);
            sum(first, splits);
            if (splits < Tile::SIZE || any_rise(whole_, rise.ratio, tile_))
                take_best(rise, first, splits);
        }
        return rise.split == 0 ? Rise{} : rise;
    }

 private:
    static constexpr std::size_t NEAR = 1024;

    // Both sums, while the values are in the cache.
    void add(const double* values, std::size_t count) {
        const auto distance = [origin = whole_.origin, values](std::size_t at) {
            return values[at] - origin;
        };
        whole_.total += sum_of<double>(count, distance);
        whole_.squares +=
            sum_of<double>(count, [&](std::size_t at) { return distance(at) * distance(at); });
    }

    // Four at a time, so that only every fourth addition depends on the one before.
    void sum(std::size_t first, std::size_t splits) {
        constexpr std::size_t FEW = 4;
        tile_.first = static_cast<double>(first);
        const double* values = series_ + first - 1;
        std::size_t at = 0;
        for (; at + FEW <= splits; at += FEW) sum_next<FEW>(values + at, at);
        for (; at < splits; ++at) sum_next<1>(values + at, at);
    }

    template <std::size_t COUNT>
    void sum_next(const double* values, std::size_t at) {
        std::array<double, COUNT> totals, squares;
        double total = 0, square = 0;
        for (std::size_t one = 0; one < COUNT; ++one) {
            const double distance = values[one] - whole_.origin;
            totals[one] = total += distance;
            squares[one] = square += distance * distance;
        }
        for (std::size_t one = 0; one < COUNT; ++one) {
            tile_.totals[at + one] = total_ + totals[one];
            tile_.squares[at + one] = squares_ + squares[one];
        }
        total_ += total;
        squares_ += square;
    }

    void take_best(Rise& rise, std::size_t first, std::size_t splits) const {
        for (std::size_t at = 0; at < splits; ++at) {
            const auto before = static_cast<double>(first + at);
            const double total = tile_.totals[at];
            if (slack(whole_, rise.ratio, before, total, tile_.squares[at]) > 0)
                rise = {first + at, ratio(before, total)};
        }
    }

    double ratio(double before, double total) const {
        return (whole_.origin + (whole_.total - total) / (whole_.count - before)) /
               (whole_.origin + total / before);
    }

    const double* series_;
    std::size_t count_;
    Whole whole_{};
    double total_ = 0, squares_ = 0;
    Tile tile_;
};

class Group {
 public:
    Group(const std::uint32_t* ranks, std::size_t size) : ranks_(ranks), own_(size) {}

    float write(const float* values, float* z) {
        const std::size_t size = own_.size();
        for (std::size_t at = 0; at < size; ++at) own_[at] = values[ranks_[at]];
        const float* own = own_.data();
        const auto number = static_cast<float>(size);
        const float mean = sum_of<float>(size, [own](std::size_t at) { return own[at]; }) / number;
        const float squares = sum_of<float>(
            size, [own, mean](std::size_t at) { return (own[at] - mean) * (own[at] - mean); });
        const float deviation = size > 1 ? std::sqrt(squares / (number - 1)) : 0.0f;
        const float scale = deviation > 0 ? 1 / deviation : 0.0f;
        for (std::size_t at = 0; at < size; ++at) z[ranks_[at]] = (own[at] - mean) * scale;
        return mean > 0 ? deviation / mean : 0.0f;
    }

 private:
    const std::uint32_t* ranks_;
    std::vector<float> own_;
};

}  // namespace

void peer_medians(const double* values, std::size_t groups, std::size_t members,
                  std::size_t columns, double* out) {
    Lanes lanes(members);
    for (std::size_t group = 0; group < groups; ++group)
        for (std::size_t column = 0; column < columns; column += LANES) {
            const std::size_t at = group * members * columns + column;
            lanes.write(values + at, columns, std::min(LANES, columns - column), out + at);
        }
}

void wide_windows(const double* series, std::size_t count, std::size_t width, double ratio,
                  std::uint8_t* wide) {
    constexpr std::size_t TILE = 1024;
    std::vector<double> largest(TILE + width), smallest(TILE + width);
    for (std::size_t first = 0; first + width <= count; first += TILE) {
        const std::size_t windows = std::min(TILE, count + 1 - width - first);
        const double *begin = series + first, *end = begin + windows + width - 1;
        std::copy(begin, end, largest.begin());
        std::copy(begin, end, smallest.begin());
        join_windows(largest.data(), windows, width, join_largest);
        join_windows(smallest.data(), windows, width, join_smallest);
        for (std::size_t at = 0; at < windows; ++at)
            wide[first + at] = largest[at] > ratio * smallest[at] ? 1 : 0;
    }
}

Rise largest_rise(const double* series, std::size_t count, double least, double spread) {
    return count < 2 ? Rise{} : Splits(series, count, spread).best(least);
}

void imbalances(const float* values, std::size_t rows, std::size_t ranks, const Groups& groups,
                float* cv, float* z) {
    std::vector<Group> all;
    for (std::size_t at = 0; at < groups.number; ++at)
        all.emplace_back(groups.order + groups.bounds[at],
                         groups.bounds[at + 1] - groups.bounds[at]);
    for (std::size_t row = 0; row < rows; ++row)
        for (std::size_t at = 0; at < all.size(); ++at)
            cv[row * all.size() + at] = all[at].write(values + row * ranks, z + row * ranks);
}

}  // namespace stepscope
