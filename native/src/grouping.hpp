// Collects the durations of each of many groups, from events in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace stepscope {

// Counts and leaves out implausible durations.
class Grouping {
 public:
    // Throws std::invalid_argument if a group is too large, or if there are too many groups.
    Grouping(const std::uint32_t* groups, const std::int64_t* durations, std::size_t events,
             std::size_t number_of_groups);

    std::size_t groups() const { return begins_.size() - 1; }
    std::size_t impossible() const { return impossible_; }
    std::size_t samples(std::size_t group) const { return begins_[group + 1] - begins_[group]; }
    // In the order in which they came.
    const std::int64_t* durations(std::size_t group) const { return &durations_[begins_[group]]; }

 private:
    std::vector<std::size_t> begins_;  // of each group in durations_, and the end
    std::unique_ptr<std::int64_t[]> durations_;
    std::size_t impossible_ = 0;
};

}  // namespace stepscope
