// CUPTI recording in one process: which activities are enabled and when, the worker thread, and
// how it ends.
//
// It uses only CUPTI's Activity API, without a subscriber or callbacks on CUDA calls, so that these
// remain available to others. The training's threads only request and return buffers
// (`buffers.hpp`). The worker looks ten times a second, and makes CUPTI return complete buffers
// once a second.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "../sender/sender.hpp"
#include "budget.hpp"
#include "buffers.hpp"
#include "detacher.hpp"
#include "library.hpp"
#include "parser.hpp"
#include "timeline.hpp"

namespace stepscope::cupti {

class Tracer {
 public:
    // The only one in the process; never destroyed, because CUPTI may call it until the end.
    static Tracer& one();

    // Starts recording, at a cost of this share of the time at most; null, or the reason why
    // nothing is recorded.
    const char* start(Graphs graphs, double share, bool detaches);
    // Releases CUPTI for another profiler, and takes it again. Both may be called at any time.
    void pause() noexcept;
    void resume() noexcept;
    // At exit: sends all that there is. What is still running counts as lost.
    void stop() noexcept;

 private:
    enum class State { none, tracing, ended };
    using Lock = std::unique_lock<std::mutex>;

    static void requested(std::uint8_t** buffer, std::size_t* size, std::size_t* most);
    static void completed(void*, std::uint32_t, std::uint8_t* buffer, std::size_t,
                          std::size_t valid);
    static void in_child() noexcept;

    bool prepare();
    bool enable();
    bool enable_graphs();
    void disable();
    bool launch();
    void run() noexcept;
    int pause_ms() const;
    void turn();
    void keep_within_budget();
    void attach_or_detach(bool wanted);
    void attach();
    void let_go();
    bool is_complete() const;
    void record_kernels(bool wanted);
    void note_recording(bool is_on);
    void look();
    void drain(std::int64_t patience_ns);
    void count_cost();
    void count_dropped();
    template <class Work>
    void quietly(Work work) noexcept;
    void leave();
    void take_over();
    void finish();
    void tell_fault() noexcept;
    void tell_pause();
    void watch_clock();
    bool is_foreign() const;
    Pair pair() const;

    // Serialises the calls to CUPTI. Its callbacks take no lock.
    std::mutex mutex_;
    Library library_{};
    Buffers buffers_;
    Timeline timeline_;
    Sender* sender_ = nullptr;
    std::unique_ptr<Parser> parser_;
    Graphs graphs_ = Graphs::graph;
    State state_ = State::none;
    bool paused_ = false;   // another profiler is active
    bool enabled_ = false;  // CUPTI passes records to us
    // CUPTI leaves the process while nothing is recorded.
    bool detaches_ = false;
    Detacher detacher_;
    std::int64_t unwanted_since_ns_ = 0;
    // Kernels, copies and memsets are recorded now, since when, and how long since the last count.
    bool recording_ = false;
    std::int64_t recording_since_ns_ = 0, recorded_ns_ = 0;
    std::unique_ptr<Budget> budget_;
    int parts_told_ = 1;
    bool foreign_ = false;  // its times are on another profiler's clock
    std::int64_t looked_ns_ = 0, cost_told_ns_ = 0;
    std::int64_t graphs_told_ = 0;
    std::uint64_t spilled_told_ = 0, declined_told_ = 0;
    std::atomic<bool> silent_{false};
};

}  // namespace stepscope::cupti
