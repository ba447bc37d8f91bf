#include "grouping.hpp"

#include <stdexcept>

#include "log_bins.hpp"

namespace stepscope {
namespace {

// Groups are 32-bit numbers.
std::size_t checked_number(std::size_t groups) {
    if (groups > std::size_t{1} << 32) throw std::invalid_argument("too many groups");
    return groups;
}

}  // namespace

Grouping::Grouping(const std::uint32_t* groups, const std::int64_t* durations, std::size_t events,
                   std::size_t number_of_groups)
    : begins_(checked_number(number_of_groups) + 1) {
    for (std::size_t event = 0; event < events; ++event) {
        if (groups[event] >= number_of_groups) throw std::invalid_argument("no such group");
        if (possible(durations[event]))
            ++begins_[groups[event] + 1];
        else
            ++impossible_;
    }
    for (std::size_t group = 1; group < begins_.size(); ++group)
        begins_[group] += begins_[group - 1];
    durations_.reset(new std::int64_t[begins_.back()]);  // none is read before it is written
    std::vector<std::size_t> next(begins_);
    for (std::size_t event = 0; event < events; ++event)
        if (possible(durations[event]))
            durations_[next[groups[event]]++] = counted(durations[event]);
}

}  // namespace stepscope
