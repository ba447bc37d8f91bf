// Times on the wire are CLOCK_MONOTONIC nanoseconds.
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
    // Wall-clock time (CUPTI's, say) to the wire's.
    std::int64_t to_mono(std::int64_t ns) const { return ns - wall_ns + mono_ns; }
};

// Of a few readings the one least disturbed.
ClockPair clock_pair();

}  // namespace stepscope
