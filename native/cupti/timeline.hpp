// Converts CUPTI's times to the wire's CLOCK_MONOTONIC.
//
// CUPTI reports CLOCK_REALTIME, which may be set. A pair of both clocks is taken every second, and
// a time is converted with the last pair before it, so that setting the clock affects the records
// of at most a second. Another profiler may make CUPTI report ticks of that profiler's clock from
// then on (torch.profiler does); the length of a tick is then measured between pairs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "../sender/clock.hpp"

namespace stepscope::cupti {

// The same moment on CUPTI's clock and on CLOCK_MONOTONIC.
struct Pair {
    std::int64_t theirs, mono_ns;
};

class Timeline {
 public:
    // Discards all pairs. `in_ns`: whether CUPTI's clock counts nanoseconds.
    void restart(bool in_ns);
    void add(Pair pair);

    std::int64_t to_mono(std::int64_t theirs) const {
        const Pair& pair = before(theirs);
        return pair.mono_ns + scaled(theirs - pair.theirs);
    }
    std::int64_t scaled(std::int64_t ticks) const {
        return in_ns_ ? ticks : static_cast<std::int64_t>(static_cast<double>(ticks) * tick_ns_);
    }

 private:
    static constexpr std::size_t MOST = 64;  // by how many seconds a record may be late

    const Pair& at(std::size_t back) const { return pairs_[(count_ - 1 - back) % MOST]; }
    const Pair& before(std::int64_t theirs) const;

    std::array<Pair, MOST> pairs_{};
    std::size_t count_ = 0;
    bool in_ns_ = true;
    double tick_ns_ = 1.0;
};

}  // namespace stepscope::cupti
