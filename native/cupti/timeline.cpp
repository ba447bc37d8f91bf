#include "timeline.hpp"

#include <algorithm>

namespace stepscope::cupti {

void Timeline::restart(bool in_ns) {
    count_ = 0;
    in_ns_ = in_ns;
    tick_ns_ = 1.0;
}

void Timeline::add(Pair pair) {
    pairs_[count_++ % MOST] = pair;
    const Pair& oldest = at(std::min(count_, MOST) - 1);
    if (!in_ns_ && pair.theirs > oldest.theirs)
        tick_ns_ = static_cast<double>(pair.mono_ns - oldest.mono_ns) /
                   static_cast<double>(pair.theirs - oldest.theirs);
}

// The newest pair that is not later than that time, else the oldest. Most times are in the last
// second.
const Pair& Timeline::before(std::int64_t theirs) const {
    const std::size_t there = std::min(count_, MOST);
    std::size_t back = 0;
    while (back + 1 < there && at(back).theirs > theirs) ++back;
    return at(back);
}

}  // namespace stepscope::cupti
