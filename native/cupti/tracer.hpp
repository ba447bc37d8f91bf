// One process's recording by CUPTI: what is switched on, the worker thread, and how it ends.
//
// CUPTI's Activity API alone: no subscriber and no callback on CUDA's calls, so that others who
// need those have them. The training's threads only take and give back buffers (`buffers.hpp`);
// the worker looks ten times a second, and once a second has CUPTI hand back what is complete.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "../sender/sender.hpp"
#include "buffers.hpp"
#include "library.hpp"
#include "parser.hpp"
#include "timeline.hpp"

namespace stepscope::cupti {

class Tracer {
 public:
    // The process's one, never destroyed: CUPTI may call until the end.
    static Tracer& one();

    // Begins; null, or why nothing is recorded.
    const char* start(Graphs graphs);
    // Leaves CUPTI to another profiler, and takes it over again. Both may be called at any time.
    void pause() noexcept;
    void resume() noexcept;
    // At exit: gives all that there is, also what still runs, which is counted as lost.
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
    void disable();
    bool launch();
    void run() noexcept;
    void turn();
    void look();
    void drain(std::int64_t patience_ns);
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

    // CUPTI's calls one after another. Its callbacks take no lock.
    std::mutex mutex_;
    Library library_{};
    Buffers buffers_;
    Timeline timeline_;
    Sender* sender_ = nullptr;
    std::unique_ptr<Parser> parser_;
    Graphs graphs_ = Graphs::graph;
    State state_ = State::none;
    bool paused_ = false;   // another profiler is at work
    bool enabled_ = false;  // CUPTI hands records to us
    bool foreign_ = false;  // its times are another profiler's
    std::int64_t looked_ns_ = 0, cost_told_ns_ = 0;
    std::int64_t graphs_told_ = 0;
    std::uint64_t spilled_told_ = 0, declined_told_ = 0;
    std::atomic<bool> silent_{false};
};

}  // namespace stepscope::cupti
