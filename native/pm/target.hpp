// The half of CUPTI's profiler that has a GPU sampled: one GPU, one configuration.
#pragma once

#include <vector>

#include "host.hpp"

namespace stepscope::pm {

// One sample as CUPTI gives it.
struct Raw {
    std::uint64_t start, end;  // of CUPTI's clock
    std::vector<double> values;
};

// Of one look at the hardware's buffer.
struct Decoded {
    std::vector<Raw> samples;
    bool overflowed = false;
};

// Which chip it is, and which counters it lets us have. Both throw Trouble.
std::string chip_of(const Library& cupti, std::size_t gpu);
Bytes availability_of(const Library& cupti, std::size_t gpu);

class Target {
 public:
    // Throws Trouble: who may not, or comes second.
    Target(const Library& cupti, std::size_t gpu, Chosen& chosen, std::uint64_t interval_ns);
    ~Target();
    Target(const Target&) = delete;
    Target& operator=(const Target&) = delete;

    void start();
    void stop();
    // All samples that are complete.
    Decoded decode();

 private:
    void configure(std::uint64_t interval_ns);
    void prepare_image();
    void reset_image();
    void take(Decoded& decoded);

    const Library& cupti_;
    Chosen& chosen_;
    SamplingObject* sampling_ = nullptr;
    bool running_ = false;
    Bytes image_;
};

}  // namespace stepscope::pm
