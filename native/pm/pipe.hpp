// Frames to the processor, in the machine's byte order.
//
//   0  kind    u32  1 said, 2 metrics, 3 samples, 4 lost, 5 chosen
//   4  bytes   u32  of what follows
//   8  said     why nothing (more) is sampled: text
//      metrics  names in the order of a sample's values, with newlines between
//      samples  n of: start_ns i64, end_ns i64, 8 values f64
//      lost     samples i64, start_ns i64, end_ns i64
//      chosen   for a log: what was left out, whose clock it is, how often the buffer overflowed
#pragma once

#include <string>

#include "queue.hpp"

namespace stepscope::pm {

class Pipe {
 public:
    explicit Pipe(int descriptor) : descriptor_(descriptor) {}

    // All of them wait for room, and do nothing once the reader is gone.
    void said(const std::string& why) { frame(1, why.data(), why.size()); }
    void metrics(const std::string& names) { frame(2, names.data(), names.size()); }
    void samples(const std::vector<Sample>& some) {
        if (!some.empty()) frame(3, some.data(), some.size() * sizeof(Sample));
    }
    void lost(const Loss& loss) {
        if (loss.samples > 0) frame(4, &loss, sizeof loss);
    }
    void note(const std::string& text) { frame(5, text.data(), text.size()); }
    bool is_broken() const { return broken_; }

 private:
    void frame(std::uint32_t kind, const void* data, std::size_t bytes);
    void write_all(const void* data, std::size_t bytes);

    int descriptor_;
    bool broken_ = false;
};

}  // namespace stepscope::pm
