// The device's clock (`globaltimer`), by which NCCL tells when a channel's work began and ended, as
// the host's.
//
// Every time that NCCL's thread tells of has passed when it does: so much later it is on the host's
// clock by then, and a little more, for which the thread was busy. The least of these differences
// is the best: it is too large by the shortest time that it took NCCL to notice, never too small.
// Each operator tells it twice per channel; its neighbours within WINDOW_NS correct it. Two clocks
// of quartz drift by some 10 millionths, 10 µs in that time.
#pragma once

#include <cstdint>
#include <limits>

#include "../sender/clock.hpp"

namespace stepscope::nccl {

class DeviceClock {
 public:
    static constexpr std::int64_t UNSEEN = std::numeric_limits<std::int64_t>::max();

    // By how much the host's clock was ahead of the device's when somebody told of its time.
    static std::int64_t ahead(std::int64_t now_ns, std::uint64_t device_ns) {
        return now_ns - static_cast<std::int64_t>(device_ns);
    }

    // How far it is ahead, once an operator that was told of at this time says so much.
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
