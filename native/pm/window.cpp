#include "window.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>

namespace stepscope::pm {
namespace {

constexpr auto PAUSE = std::chrono::milliseconds(10);  // between two looks at the queue
// Between two looks at the hardware's buffer, of which each costs 2.4 ms whatever it finds (an
// H200, CUPTI 13.0). There, the buffer did not hold the 1,000 samples of eight metrics of 100 ms.
constexpr std::int64_t SAMPLES_OF_A_LOOK = 100;
constexpr std::int64_t SHORTEST_NS = 10'000'000, LONGEST_NS = 100'000'000;

bool is_readable(int descriptor) {
    pollfd one{descriptor, POLLIN, 0};
    return poll(&one, 1, 0) > 0;
}

std::int64_t monotonic_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

}  // namespace

Window::Window(const Library& cupti, Target& target, const Chosen& chosen, std::int64_t interval_ns)
    : cupti_(cupti), target_(target), chosen_(chosen), interval_ns_(interval_ns) {}

void Window::run(std::int64_t window_ns, Pipe& pipe, int stop) {
    clock_.calibrate(cupti_);
    target_.start();
    std::thread decoder([this, window_ns] { decode_until(monotonic_ns() + window_ns); });
    for (Batch batch; queue_.take(batch); std::this_thread::sleep_for(PAUSE)) {
        pipe.samples(batch.samples);
        pipe.lost(batch.loss);
        if (pipe.is_broken() || is_readable(stop)) stop_ = true;
    }
    decoder.join();
    if (!trouble_.empty()) throw Trouble(trouble_);
}

void Window::decode_until(std::int64_t until_ns) noexcept {
    const std::int64_t pause_ns =
        std::clamp(SAMPLES_OF_A_LOOK * interval_ns_, SHORTEST_NS, LONGEST_NS);
    try {
        while (!stop_ && monotonic_ns() < until_ns) {
            turn();
            const std::int64_t left_ns = until_ns - monotonic_ns();
            std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(pause_ns, left_ns)));
        }
        target_.stop();
        turn();
    } catch (const std::exception& error) {
        trouble_ = error.what();
    }
    queue_.close();
}

void Window::turn() {
    const Decoded decoded = target_.decode();
    overflows_ += decoded.overflowed;
    if (!decoded.samples.empty()) clock_.notice(decoded.samples.back().end, wall_ns());
    for (const Raw& raw : decoded.samples) take(raw);
}

// Discards the first sample, which began before the start was complete: its period is unknown.
void Window::take(const Raw& raw) {
    const bool is_first = last_end_ == 0;
    if (!is_first) count_gap(raw);
    last_end_ = raw.end;
    if (is_first) return;
    Sample sample{clock_.wall(raw.start), clock_.wall(raw.end), {}};
    if (raw.end <= raw.start) {
        queue_.lost(1, sample.end_ns, sample.end_ns);
        return;
    }
    chosen_.convert(raw.values, sample);
    queue_.push(sample);
}

// Samples follow one another without gaps; a gap means that the hardware had no room for some.
void Window::count_gap(const Raw& raw) {
    if (raw.start <= last_end_) return;
    const auto gap_ns = static_cast<std::int64_t>(raw.start - last_end_);
    const std::int64_t missing = (gap_ns + interval_ns_ / 2) / interval_ns_;
    if (missing > 0) queue_.lost(missing, clock_.wall(last_end_), clock_.wall(raw.start));
}

}  // namespace stepscope::pm
