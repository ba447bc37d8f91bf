// The bins of one group in order of duration, with the count of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stepscope {

// A range of neighbouring entries of a tally; the last one is excluded.
struct Slice {
    std::size_t begin, end;
};

// ARGUS, section 5.2: how often a mode occurred, and its duration at the median and the tail; in
// addition to ARGUS, its maximum.
struct Mode {
    std::int64_t count, p50_ns, p99_ns, max_ns;
};

// One mode of a group, numbered from the shortest.
struct Row {
    std::int64_t group, cluster;
    Mode mode;
};

// The positions of the percentiles among this many sorted samples: the lower median, and the
// smallest sample that 99 % do not exceed.
constexpr std::int64_t p50_place(std::int64_t samples) { return (samples - 1) / 2; }
constexpr std::int64_t p99_place(std::int64_t samples) { return (99 * samples + 99) / 100 - 1; }

class Tally {
 public:
    void clear();
    // Adds a bin, which must have longer durations than those before it.
    void add(std::uint32_t bin, std::int64_t count);

    Slice whole() const { return {0, bin_.size()}; }
    double log(std::size_t entry) const { return log_[entry]; }
    std::int64_t count(std::size_t entry) const { return before_[entry + 1] - before_[entry]; }
    std::int64_t count(Slice slice) const { return before_[slice.end] - before_[slice.begin]; }

    // Standard deviation of the logarithms.
    double deviation(Slice slice) const;
    // The first entry of a slice whose logarithm exceeds that of the slice's first by more than
    // this.
    std::size_t beyond(Slice slice, double distance) const;
    Mode mode(Slice slice) const;

 private:
    // The duration at a position in order, from 0; durations of one bin are spread evenly over its
    // width.
    std::int64_t at(Slice slice, std::int64_t place) const;

    std::vector<std::uint32_t> bin_;
    std::vector<double> log_;                 // of the bin's middle
    std::vector<std::int64_t> before_ = {0};  // durations before each entry, and before the end
};

}  // namespace stepscope
