// Converts the times of samples to the host's wall clock.
//
// According to CUPTI's guide they are on the CPU's clock, which is CUPTI's own, the one of
// `cuptiGetTimestamp`. A sample that is in the future on that clock, or more than a second in the
// past, is on another clock. The offset of that one is estimated from the sample that arrived
// soonest, and is too large by up to the pause between two decodings.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstdint>

#include "library.hpp"

namespace stepscope::pm {

inline std::int64_t wall_ns() {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

class HostClock {
 public:
    // Asks CUPTI for the current time.
    void calibrate(const Library& cupti) {
        const std::int64_t before = wall_ns();
        std::uint64_t theirs = 0;
        if (cupti.get_timestamp(&theirs) != SUCCESS) return;
        offset_ns_ = before + (wall_ns() - before) / 2 - static_cast<std::int64_t>(theirs);
    }

    // A sample with this end has just arrived.
    void notice(std::uint64_t end, std::int64_t now_ns) {
        const std::int64_t difference = now_ns - static_cast<std::int64_t>(end);
        const std::int64_t late_ns = difference - offset_ns_;
        if (foreign_) {
            offset_ns_ = std::min(offset_ns_, difference);
        } else if (late_ns < -MOST_EARLY_NS || late_ns > MOST_LATE_NS) {
            foreign_ = true;
            offset_ns_ = difference;
        }
    }

    std::int64_t wall(std::uint64_t theirs) const {
        return static_cast<std::int64_t>(theirs) + offset_ns_;
    }
    bool is_foreign() const { return foreign_; }

 private:
    static constexpr std::int64_t MOST_EARLY_NS = 1'000'000, MOST_LATE_NS = 1'000'000'000;

    std::int64_t offset_ns_ = 0;
    bool foreign_ = false;
};

}  // namespace stepscope::pm
