// The bins of one group in order of duration, and how often each came.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stepscope {

// Neighbouring entries of a tally, the last one not included.
struct Slice {
    std::size_t begin, end;
};

// ARGUS, section 5.2: how often a mode came, and how long it took at the median and the tail; and,
// which ARGUS has not, at most.
struct Mode {
    std::int64_t count, p50_ns, p99_ns, max_ns;
};

// One mode of a group, by its number from the shortest.
struct Row {
    std::int64_t group, cluster;
    Mode mode;
};

// Places of the percentiles among so many samples in order: the lower median, and the least one
// that 99 % do not exceed.
constexpr std::int64_t p50_place(std::int64_t samples) { return (samples - 1) / 2; }
constexpr std::int64_t p99_place(std::int64_t samples) { return (99 * samples + 99) / 100 - 1; }

class Tally {
 public:
    void clear();
    // A bin of longer durations than those before it.
    void add(std::uint32_t bin, std::int64_t count);

    Slice whole() const { return {0, bin_.size()}; }
    double log(std::size_t entry) const { return log_[entry]; }
    std::int64_t count(std::size_t entry) const { return before_[entry + 1] - before_[entry]; }
    std::int64_t count(Slice slice) const { return before_[slice.end] - before_[slice.begin]; }

    // Standard deviation of the logarithms.
    double deviation(Slice slice) const;
    // The first entry of a slice whose logarithm exceeds its first one's by more than that.
    std::size_t beyond(Slice slice, double distance) const;
    Mode mode(Slice slice) const;

 private:
    // The duration at a place in order, from 0; those of one bin stand evenly in its width.
    std::int64_t at(Slice slice, std::int64_t place) const;

    std::vector<std::uint32_t> bin_;
    std::vector<double> log_;                 // of the bin's middle
    std::vector<std::int64_t> before_ = {0};  // how many came before each entry, and before the end
};

}  // namespace stepscope
