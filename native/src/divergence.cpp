#include "divergence.hpp"

#include <algorithm>

namespace stepscope {
namespace {

// Also compiled for wider vectors; the choice is made when the module is loaded.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define STEPSCOPE_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define STEPSCOPE_WIDE
#endif

constexpr std::size_t BLOCK = 32;  // rows side by side: 16 KB of 256 points each

// The largest differences between one row and those of a block, whose values are [points, BLOCK].
STEPSCOPE_WIDE void compare(const std::int16_t* one, const std::int16_t* block, std::size_t points,
                            std::int16_t* apart) {
    std::int16_t above[BLOCK] = {}, below[BLOCK] = {};
    for (std::size_t point = 0; point < points; ++point) {
        const std::int16_t* others = block + point * BLOCK;
        const std::int16_t own = one[point];
        for (std::size_t at = 0; at < BLOCK; ++at) {
            const auto difference = static_cast<std::int16_t>(own - others[at]);
            above[at] = std::max(above[at], difference);
            below[at] = std::min(below[at], difference);
        }
    }
    for (std::size_t at = 0; at < BLOCK; ++at)
        apart[at] = std::max(above[at], static_cast<std::int16_t>(-below[at]));
}

// Rows side by side; those beyond the last are copies of the last.
void arrange(Rows rows, std::size_t points, std::size_t first, std::int16_t* block) {
    for (std::size_t at = 0; at < BLOCK; ++at) {
        const std::int16_t* row = rows.values + std::min(first + at, rows.count - 1) * points;
        for (std::size_t point = 0; point < points; ++point) block[point * BLOCK + at] = row[point];
    }
}

std::uint64_t total_of(const std::int16_t* apart, std::size_t count) {
    std::uint64_t total = 0;
    for (std::size_t at = 0; at < count; ++at) total += static_cast<std::uint64_t>(apart[at]);
    return total;
}

std::vector<double> means_of(const std::vector<std::uint64_t>& sums, std::size_t others) {
    std::vector<double> means(sums.size(), 0.0);
    const double of = WHOLE * static_cast<double>(std::max<std::size_t>(others, 1));
    for (std::size_t row = 0; row < sums.size(); ++row)
        means[row] = static_cast<double>(sums[row]) / of;
    return means;
}

}  // namespace

std::vector<double> mean_divergences(Rows rows, std::size_t points) {
    std::vector<std::uint64_t> sums(rows.count, 0);
    std::vector<std::int16_t> block(points * BLOCK);
    for (std::size_t first = 0; first < rows.count; first += BLOCK) {
        arrange(rows, points, first, block.data());
        const std::size_t count = std::min(BLOCK, rows.count - first);
        for (std::size_t one = 0; one < first + count; ++one) {
            std::int16_t apart[BLOCK];
            compare(rows.values + one * points, block.data(), points, apart);
            sums[one] += total_of(apart, count);
            if (one >= first) continue;  // within the block each pair is met twice
            for (std::size_t at = 0; at < count; ++at)
                sums[first + at] += static_cast<std::uint64_t>(apart[at]);
        }
    }
    return means_of(sums, rows.count - std::min<std::size_t>(rows.count, 1));
}

std::vector<double> mean_divergences_from(Rows rows, Rows some, std::size_t points) {
    std::vector<std::uint64_t> sums(rows.count, 0);
    std::vector<std::int16_t> block(points * BLOCK);
    for (std::size_t first = 0; first < some.count; first += BLOCK) {
        arrange(some, points, first, block.data());
        const std::size_t count = std::min(BLOCK, some.count - first);
        for (std::size_t one = 0; one < rows.count; ++one) {
            std::int16_t apart[BLOCK];
            compare(rows.values + one * points, block.data(), points, apart);
            sums[one] += total_of(apart, count);
        }
    }
    return means_of(sums, some.count);
}

}  // namespace stepscope
