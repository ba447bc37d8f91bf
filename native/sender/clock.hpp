// Times in records are CLOCK_MONOTONIC nanoseconds.
#pragma once

#include <time.h>

#include <cstdint>

namespace stepscope {

constexpr std::int64_t SECOND_NS = 1'000'000'000;

inline std::int64_t clock_ns(clockid_t clock) {
    timespec now{};
    clock_gettime(clock, &now);
    return now.tv_sec * SECOND_NS + now.tv_nsec;
}

inline std::int64_t now_ns() { return clock_ns(CLOCK_MONOTONIC); }

// The same moment on both clocks.
struct ClockPair {
    std::int64_t wall_ns, mono_ns;
    // Converts wall-clock time (CUPTI's, for example) to CLOCK_MONOTONIC.
    std::int64_t to_mono(std::int64_t ns) const { return ns - wall_ns + mono_ns; }
};

// Takes a few readings and returns the least disturbed one.
ClockPair clock_pair();

}  // namespace stepscope
