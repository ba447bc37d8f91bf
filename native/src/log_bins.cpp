#include "log_bins.hpp"

#include <array>
#include <cmath>

namespace stepscope {
namespace {

constexpr double LN2 = 0.693147180559945309417;

struct Middle {
    double value, inverse, log;
};

// The bins of the octave from 1 to 2.
const auto MIDDLES = [] {
    std::array<Middle, BINS_PER_OCTAVE> made{};
    for (std::size_t bin = 0; bin < made.size(); ++bin) {
        const double value = 1 + (static_cast<double>(bin) + 0.5) / BINS_PER_OCTAVE;
        made[bin] = {value, 1 / value, std::log(value)};
    }
    return made;
}();

const auto LOGS = [] {
    std::array<double, OCTAVES * BINS_PER_OCTAVE> made{};
    for (std::uint32_t bin = 0; bin < made.size(); ++bin) {
        const auto width = static_cast<double>(width_of(bin));
        made[bin] = std::log(static_cast<double>(first_of(bin)) + (width - 1) / 2);
    }
    return made;
}();

double logarithm(std::int64_t duration) {
    const std::uint64_t bits = bits_of(duration);
    const double octave = static_cast<double>(static_cast<std::int64_t>(bits >> 52) - 1023);
    const std::uint64_t mantissa = (bits & ((std::uint64_t{1} << 52) - 1)) | std::uint64_t{1023}
                                                                                 << 52;
    double scaled;
    std::memcpy(&scaled, &mantissa, sizeof scaled);
    const Middle& middle = MIDDLES[bits >> 45 & (BINS_PER_OCTAVE - 1)];
    // log(1 + r) by its series; |r| < 1/256, so the omitted terms are below r^7 / 7 = 2e-18
    const double r = (scaled - middle.value) * middle.inverse;
    const double from_4 = 1.0 / 4 - r * (1.0 / 5 - r * (1.0 / 6));
    const double series = r - r * r * (1.0 / 2 - r * (1.0 / 3 - r * from_4));
    return octave * LN2 + (middle.log + series);
}

}  // namespace

double log_of_middle(std::uint32_t bin) { return LOGS[bin]; }

void logarithms(const std::int64_t* durations, std::size_t count, double* logs) {
    for (std::size_t at = 0; at < count; ++at) logs[at] = logarithm(durations[at]);
}

}  // namespace stepscope
