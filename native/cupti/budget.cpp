#include "budget.hpp"

#include <algorithm>

namespace stepscope::cupti {
namespace {

constexpr std::int64_t PERIOD_NS = 10 * SECOND_NS;
constexpr int MOST_PARTS = 64;  // of 156 ms
// Below this, what a second brought says nothing about a rate.
constexpr std::int64_t LEAST_NS = SECOND_NS / 2;

// A well-mixed number for a small one (SplitMix64).
std::uint64_t mixed(std::uint64_t number) {
    number += 0x9e3779b97f4a7c15;
    number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9;
    number = (number ^ (number >> 27)) * 0x94d049bb133111eb;
    return number ^ (number >> 31);
}

}  // namespace

std::int64_t Budget::begin_of(std::int64_t period) const {
    const std::int64_t room = PERIOD_NS - PERIOD_NS / parts_;
    const auto number = mixed(static_cast<std::uint64_t>(period));
    return period * PERIOD_NS +
           static_cast<std::int64_t>(number % static_cast<std::uint64_t>(room + 1));
}

bool Budget::is_on(std::int64_t wall_ns) const {
    const std::int64_t period = wall_ns / PERIOD_NS, begin = begin_of(period);
    return period != over_in_ && wall_ns >= begin && wall_ns < begin + PERIOD_NS / parts_;
}

std::int64_t Budget::until_change(std::int64_t wall_ns) const {
    const std::int64_t period = wall_ns / PERIOD_NS, begin = begin_of(period);
    for (const std::int64_t edge : {begin, begin + PERIOD_NS / parts_}) {
        if (edge > wall_ns && period != over_in_) return edge - wall_ns;
    }
    return (period + 1) * PERIOD_NS - wall_ns;
}

// More parts at once, fewer only after a minute that did not need as many.
void Budget::took(std::int64_t wall_ns, std::int64_t records, std::int64_t recorded_ns) {
    if (wall_ns / PERIOD_NS != period_) begin_period(wall_ns / PERIOD_NS);
    records_ += records;
    recorded_ns_ += recorded_ns;
    const int needed = recorded_ns >= LEAST_NS ? parts_for(records, recorded_ns) : 1;
    if (needed <= parts_) return;
    parts_ = needed_[static_cast<std::size_t>(period_) % REMEMBERED] = needed;
    over_in_ = period_;
}

void Budget::begin_period(std::int64_t period) {
    int& last = needed_[static_cast<std::size_t>(period_) % REMEMBERED];
    last = std::max(last, parts_for(records_, recorded_ns_));
    for (std::int64_t at = period_ + 1; at <= period && at <= period_ + std::int64_t{REMEMBERED};
         ++at)
        needed_[static_cast<std::size_t>(at) % REMEMBERED] = 1;
    period_ = period;
    records_ = recorded_ns_ = 0;
    parts_ = *std::max_element(needed_.begin(), needed_.end());
    parts_ = std::max(parts_, 1);
}

int Budget::parts_for(std::int64_t records, std::int64_t recorded_ns) const {
    const double cost = static_cast<double>(records) * record_ns_;
    int parts = 1;
    while (parts < MOST_PARTS && cost > share_ * parts * static_cast<double>(recorded_ns))
        parts *= 2;
    return parts;
}

}  // namespace stepscope::cupti
