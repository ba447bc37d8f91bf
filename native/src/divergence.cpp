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

constexpr std::size_t BLOCK = 32;  // workers side by side: 16 KB of 256 points each

// The largest differences between one worker and those of a block, whose values are [points,
// BLOCK].
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

// The workers of a block side by side; those beyond the last are copies of the last.
void arrange(const std::int16_t* values, std::size_t workers, std::size_t points, std::size_t first,
             std::int16_t* block) {
    for (std::size_t at = 0; at < BLOCK; ++at) {
        const std::int16_t* row = values + std::min(first + at, workers - 1) * points;
        for (std::size_t point = 0; point < points; ++point) block[point * BLOCK + at] = row[point];
    }
}

}  // namespace

std::vector<double> mean_divergences(const std::int16_t* values, std::size_t workers,
                                     std::size_t points) {
    std::vector<std::uint64_t> sums(workers, 0);
    std::vector<std::int16_t> block(points * BLOCK);
    for (std::size_t first = 0; first < workers; first += BLOCK) {
        arrange(values, workers, points, first, block.data());
        const std::size_t count = std::min(BLOCK, workers - first);
        for (std::size_t one = 0; one < first + count; ++one) {
            std::int16_t apart[BLOCK];
            compare(values + one * points, block.data(), points, apart);
            std::uint64_t total = 0;
            for (std::size_t at = 0; at < count; ++at)
                total += static_cast<std::uint64_t>(apart[at]);
            sums[one] += total;
            if (one >= first) continue;  // within the block each pair is met twice
            for (std::size_t at = 0; at < count; ++at)
                sums[first + at] += static_cast<std::uint64_t>(apart[at]);
        }
    }
    std::vector<double> means(workers, 0.0);
    const double of = WHOLE * static_cast<double>(std::max<std::size_t>(workers, 2) - 1);
    for (std::size_t worker = 0; worker < workers; ++worker)
        means[worker] = static_cast<double>(sums[worker]) / of;
    return means;
}

}  // namespace stepscope
