// CUPTI's times to the wire's, CLOCK_MONOTONIC.
//
// CUPTI tells CLOCK_REALTIME, which somebody may set. A pair of both clocks is taken every second,
// and a time is translated by the last pair before it: what is set moves at most the records of a
// second. Another profiler may have CUPTI tell ticks of its own clock from then on (torch.profiler
// does); their length is then measured between pairs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "../sender/clock.hpp"

namespace stepscope::cupti {

// The same moment on CUPTI's clock and on the wire's.
struct Pair {
    std::int64_t theirs, mono_ns;
};

class Timeline {
 public:
    // Forgets all pairs. `in_ns`: their clock counts nanoseconds.
    void restart(bool in_ns);
    void add(Pair pair);
    // By how many nanoseconds one of their ticks goes on.
    double tick_ns() const { return tick_ns_; }

    std::int64_t to_mono(std::int64_t theirs) const {
        const Pair& pair = before(theirs);
        return pair.mono_ns + scaled(theirs - pair.theirs);
    }
    std::int64_t scaled(std::int64_t ticks) const {
        return in_ns_ ? ticks : static_cast<std::int64_t>(static_cast<double>(ticks) * tick_ns_);
    }

 private:
    static constexpr std::size_t MOST = 64;  // seconds that a record may be late by

    const Pair& at(std::size_t back) const { return pairs_[(count_ - 1 - back) % MOST]; }
    const Pair& before(std::int64_t theirs) const;

    std::array<Pair, MOST> pairs_{};
    std::size_t count_ = 0;
    bool in_ns_ = true;
    double tick_ns_ = 1.0;
};

}  // namespace stepscope::cupti
