// Turns the CUPTI records of buffers into wire records, on the worker thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../sender/sender.hpp"
#include "library.hpp"
#include "names.hpp"
#include "timeline.hpp"

namespace stepscope::cupti {

// What to record of kernels that a CUDA graph launches: nothing, one record per launch of the
// graph, or one per kernel, which costs most.
enum class Graphs { off, graph, node };

class Parser {
 public:
    Parser(const Library& library, Sender& sender, Graphs graphs)
        : library_(library), sender_(sender), graphs_(graphs), names_(sender) {
        for (std::int64_t& number : copies_) number = UNKNOWN;
        for (std::int64_t& number : sets_) number = UNKNOWN;
    }

    // Earlier records are discarded.
    void begin(std::int64_t since_ns) { earliest_ns_ = since_ns - SLACK_NS; }
    // How long the records of the next buffers may wait for room, in total.
    void be_patient(std::int64_t ns) { patience_ns_ = ns; }
    void read(std::uint8_t* buffer, std::size_t valid, const Timeline& timeline);

    // How long the threads of this process waited for its device since the last call.
    std::int64_t take_waited_ns();
    // How many kernels, copies and memsets were read since the last call.
    std::int64_t take_recorded();
    // How often a graph, or a kernel of a graph, was seen.
    std::int64_t graphs_seen() const { return graphs_seen_; }

 private:
    // A time further away than this is invalid: a clock was set, or now ticks differently.
    static constexpr std::int64_t SLACK_NS = SECOND_NS;
    static constexpr std::size_t BATCH = 32;  // 2 KB, which fit into the L1 cache

    void take(Record record, const Timeline& timeline);
    void kernel(Record record, const Timeline& timeline);
    void graph(Record record, const Timeline& timeline);
    void tell(std::int64_t name, std::int64_t launch, Record record, Layout layout,
              const Timeline& timeline);
    void put();
    std::int64_t copy(Record record);
    std::int64_t set(Record record);
    void wait(Record record, const Timeline& timeline);

    const Library& library_;
    Sender& sender_;
    const Graphs graphs_;
    KernelNames names_;
    std::int64_t copies_[1 << 12];  // by kind and both memories, four bits each
    std::int64_t sets_[1 << 4];
    std::int64_t earliest_ns_ = 0, latest_ns_ = 0;
    std::int64_t patience_ns_ = 0;
    stepscope::Record batch_[BATCH];
    std::size_t batched_ = 0;
    std::int64_t waited_ns_ = 0, recorded_ = 0;
    std::int64_t graphs_seen_ = 0;
};

}  // namespace stepscope::cupti
