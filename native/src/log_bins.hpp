// The histogram bin of a duration: 128 bins per octave, from the top bits of its float64.
//
//     s eeeeeeeeeee mmmmmmm mmm…                   the float64 of a whole number from 1 on
//       └ 1023 + octave └ bin in the octave        (to 2^53, which is exact, and beyond LONGEST)
//               └───────┴ what is left lies below the bin's width, 1/128 of its octave
//
// Lossy: only the bin of a duration is kept, which is narrower than 1/128 of any duration in it.
// Below 256 ns a bin is one whole number, and nothing is lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace stepscope {

constexpr std::uint32_t BINS_PER_OCTAVE = 128;
constexpr std::uint32_t OCTAVES = 50;
// No kernel lasts eleven days: the clock jumped. The same limit as in diagnose/clean.py.
constexpr std::int64_t LONGEST_NS = 1'000'000'000'000'000;
static_assert(LONGEST_NS < (std::int64_t{1} << OCTAVES));

// Whether a duration is plausible.
inline bool possible(std::int64_t duration) {
    return static_cast<std::uint64_t>(duration) < static_cast<std::uint64_t>(LONGEST_NS);
}

// The value for which a duration counts. One below the clock's resolution counts as 1 ns, which has
// a logarithm.
inline std::int64_t counted(std::int64_t duration) { return duration + (duration == 0); }

inline std::uint64_t bits_of(std::int64_t duration) {
    const auto real = static_cast<double>(duration);
    std::uint64_t bits;
    std::memcpy(&bits, &real, sizeof bits);
    return bits;
}
inline std::uint32_t bin_of(std::int64_t duration) {
    return static_cast<std::uint32_t>(bits_of(counted(duration)) >> 45) - 1023 * BINS_PER_OCTAVE;
}

// The smallest duration of a non-empty bin, and how many whole numbers the bin contains.
inline std::int64_t first_of(std::uint32_t bin) {
    const std::uint32_t octave = bin / BINS_PER_OCTAVE;
    const std::int64_t scaled = BINS_PER_OCTAVE + bin % BINS_PER_OCTAVE;
    return octave < 7 ? scaled >> (7 - octave) : scaled << (octave - 7);
}
inline std::int64_t width_of(std::uint32_t bin) {
    const std::uint32_t octave = bin / BINS_PER_OCTAVE;
    return octave < 7 ? 1 : std::int64_t{1} << (octave - 7);
}

// The natural logarithm of the middle of a bin.
double log_of_middle(std::uint32_t bin);
// For durations from 1 on; within 1e-14, in a fraction of the time of std::log.
void logarithms(const std::int64_t* durations, std::size_t count, double* logs);

}  // namespace stepscope
