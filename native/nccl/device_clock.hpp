// Converts the device's clock (`globaltimer`), with which NCCL reports when a channel's work began
// and ended, to the host's clock.
//
// A time has always passed when NCCL's thread reports it. So the difference between the two clocks
// at that moment is too large by the time that NCCL took to notice, and never too small: the
// smallest difference is the best. Each operator yields two differences per channel; operators
// within WINDOW_NS correct one another. Two quartz clocks drift apart by some 10 millionths, which
// is 10 µs in that time.
#pragma once

#include <cstdint>
#include <limits>

#include "../sender/clock.hpp"

namespace stepscope::nccl {

class DeviceClock {
 public:
    static constexpr std::int64_t UNSEEN = std::numeric_limits<std::int64_t>::max();

    // By how much the host's clock was ahead of the device's when a time was reported.
    static std::int64_t ahead(std::int64_t now_ns, std::uint64_t device_ns) {
        return now_ns - static_cast<std::int64_t>(device_ns);
    }

    // By how much it is ahead, including an operator that was reported at this time with this
    // difference.
    std::int64_t correct(std::int64_t ahead, std::int64_t at_ns) {
        const std::int64_t apart = at_ns < since_ns_ ? since_ns_ - at_ns : at_ns - since_ns_;
        if (ahead_ == UNSEEN || apart > WINDOW_NS) {
            since_ns_ = at_ns;
            ahead_ = ahead;
        }
        if (ahead < ahead_) ahead_ = ahead;
        return ahead_;
    }

 private:
    static constexpr std::int64_t WINDOW_NS = SECOND_NS;

    std::int64_t ahead_ = UNSEEN, since_ns_ = 0;
};

}  // namespace stepscope::nccl
