// A bounded queue of samples from the decoding thread to the writing thread; drops are counted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "metrics.hpp"

namespace stepscope::pm {

struct Loss {
    std::int64_t samples = 0, start_ns = 0, end_ns = 0;

    void add(std::int64_t count, std::int64_t from_ns, std::int64_t until_ns) {
        start_ns = samples == 0 ? from_ns : std::min(start_ns, from_ns);
        end_ns = samples == 0 ? until_ns : std::max(end_ns, until_ns);
        samples += count;
    }
};

struct Batch {
    std::vector<Sample> samples;
    Loss loss;
};

class Queue {
 public:
    void push(const Sample& sample) {
        const std::lock_guard<std::mutex> hold(mutex_);
        if (waiting_.samples.size() >= MOST_SAMPLES) {
            waiting_.loss.add(1, sample.start_ns, sample.end_ns);
        } else {
            waiting_.samples.push_back(sample);
        }
    }

    void lost(std::int64_t count, std::int64_t from_ns, std::int64_t until_ns) {
        const std::lock_guard<std::mutex> hold(mutex_);
        waiting_.loss.add(count, from_ns, until_ns);
    }

    // No more samples will come.
    void close() {
        const std::lock_guard<std::mutex> hold(mutex_);
        closed_ = true;
    }

    // Takes what is there, perhaps nothing; false once it is empty and no more will come.
    bool take(Batch& batch) {
        const std::lock_guard<std::mutex> hold(mutex_);
        batch = std::exchange(waiting_, Batch{});
        return !closed_ || !batch.samples.empty() || batch.loss.samples > 0;
    }

 private:
    static constexpr std::size_t MOST_SAMPLES = 1 << 16;  // 6.5 s at 10 kHz, 5 MiB

    std::mutex mutex_;
    Batch waiting_;
    bool closed_ = false;
};

}  // namespace stepscope::pm
