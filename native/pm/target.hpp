// The half of CUPTI's profiler that samples a GPU: one GPU, one configuration.
#pragma once

#include <vector>

#include "host.hpp"

namespace stepscope::pm {

// One sample as CUPTI returns it.
struct Raw {
    std::uint64_t start, end;  // on CUPTI's clock
    std::vector<double> values;
};

// The result of one look at the hardware's buffer.
struct Decoded {
    std::vector<Raw> samples;
    bool overflowed = false;
};

// The name of the chip, and the counters that are available to us. Both throw Trouble.
std::string chip_of(const Library& cupti, std::size_t gpu);
Bytes availability_of(const Library& cupti, std::size_t gpu);

class Target {
 public:
    // Throws Trouble if the user lacks the permission, or another profiler is active.
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
