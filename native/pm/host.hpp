// The half of CUPTI's profiler that needs no GPU: which counters a chip has, which of them fit in
// one pass, and how to evaluate raw samples.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "library.hpp"
#include "metrics.hpp"

namespace stepscope::pm {

using Bytes = std::vector<std::uint8_t>;

class Host {
 public:
    // `availability` may be null: then all counters of the chip count as available. Throws Trouble.
    Host(const Library& cupti, const std::string& chip, const std::uint8_t* availability);
    ~Host();
    Host(const Host&) = delete;
    Host& operator=(const Host&) = delete;

    // False if the chip lacks one of them; the object cannot be used then.
    bool add(std::vector<const char*> counters);
    Bytes config_image() const;
    std::size_t passes(const Bytes& config) const;
    void evaluate(const Bytes& data, std::size_t sample, std::vector<const char*>& counters,
                  double* values) const;

 private:
    const Library& cupti_;
    HostObject* host_;
};

// The metrics that will be sampled.
struct Chosen {
    std::vector<const Metric*> metrics;
    std::vector<std::string> unknown, other_pass;  // left out: missing on the chip; no room
    std::vector<const char*> counters;
    Bytes config;
    std::unique_ptr<Host> host;

    // Our values of one sample, computed from CUPTI's.
    void convert(const std::vector<double>& raw, Sample& sample) const;
};

// As many as fit in one pass, in the order of METRICS. Throws Trouble if none fits.
Chosen choose(const Library& cupti, const std::string& chip, const std::uint8_t* availability);

}  // namespace stepscope::pm
