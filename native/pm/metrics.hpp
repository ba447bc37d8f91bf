// What is told of a GPU, and of which counters of CUPTI's it is made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stepscope::pm {

constexpr std::size_t MOST_METRICS = 8;

// One sample as it goes to the processor.
struct Sample {
    std::int64_t start_ns, end_ns;  // of the host's wall clock
    double values[MOST_METRICS];  // in the order in which the metrics were told; else not a number
};

struct Metric {
    const char* name;      // as in table `hardware`
    const char* parts[2];  // CUPTI's names, whose values are added; the second may be null
    double factor;         // to our unit
    bool is_count;         // over the sample's period; we tell how much in a second

    std::vector<const char*> counters() const;
};

// In the order in which they are taken, as long as all fit in one pass. Of several with one name
// the first that a chip has is taken.
extern const std::vector<Metric> METRICS;

}  // namespace stepscope::pm
