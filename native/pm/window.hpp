// Samples one GPU for one window: a thread decodes, the caller's thread writes.
#pragma once

#include <atomic>
#include <string>

#include "clock.hpp"
#include "pipe.hpp"
#include "queue.hpp"
#include "target.hpp"

namespace stepscope::pm {

class Window {
 public:
    Window(const Library& cupti, Target& target, const Chosen& chosen, std::int64_t interval_ns);

    // Runs until it is over, `stop` is readable, or the reader is gone. Throws Trouble.
    void run(std::int64_t window_ns, Pipe& pipe, int stop);
    std::uint64_t overflows() const { return overflows_; }
    bool has_foreign_clock() const { return clock_.is_foreign(); }

 private:
    void decode_until(std::int64_t until_ns) noexcept;
    void turn();
    void take(const Raw& raw);
    void count_gap(const Raw& raw);

    const Library& cupti_;
    Target& target_;
    const Chosen& chosen_;
    const std::int64_t interval_ns_;
    HostClock clock_;
    Queue queue_;
    std::atomic<bool> stop_{false};
    // Used by the decoding thread; may be read when that has ended.
    std::uint64_t last_end_ = 0, overflows_ = 0;
    std::string trouble_;
};

}  // namespace stepscope::pm
