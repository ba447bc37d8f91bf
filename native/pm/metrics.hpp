// The metrics of a GPU, and the CUPTI counters from which each is computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stepscope::pm {

constexpr std::size_t MOST_METRICS = 8;

// One sample as it is sent to the processor.
struct Sample {
    std::int64_t start_ns, end_ns;  // on the host's wall clock
    double values[MOST_METRICS];  // in the order in which the metrics were told; else not a number
};

struct Metric {
    const char* name;      // as in table `hardware`
    const char* parts[2];  // CUPTI's names, whose values are summed; the second may be null
    double factor;         // to our unit
    bool is_count;         // a count over the sample's period, which we report per second

    std::vector<const char*> counters() const;
};

// In the order in which they are chosen, as long as all fit in one pass. If several have the same
// name, the first that a chip has is chosen.
extern const std::vector<Metric> METRICS;

}  // namespace stepscope::pm
