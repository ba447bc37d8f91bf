// Memory that Python and C++ share, and the clock of both.

#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>

// `Shared` in collect/shared.py has the same layout.
struct Shared {
    std::atomic<std::int64_t> ordinal;         // optimizer steps so far
    std::atomic<std::int64_t> blocked_ns;      // time the training thread has waited so far
    std::atomic<std::int64_t> last_bucket_ns;  // when DDP's reducer called last; 0: already used
    std::atomic<std::int64_t> computed_ns;     // when all gradients of these buckets were computed
    std::atomic<std::int64_t> reduced_ns;      // when a bucket was reduced last
    std::atomic<std::int64_t> enabled;
    std::atomic<std::int64_t> training_thread;  // pthread_self
    std::atomic<std::int64_t> dropped;          // events for which there was no room
    std::atomic<std::int64_t> faults;           // exceptions in our code
    std::atomic<std::int64_t> calls;            // operators called so far
    std::atomic<std::int64_t> buckets;          // how many of them DDP's reducer called
    std::atomic<std::int64_t> reduced;          // how many of those buckets have ended
};

extern "C" Shared stepscope_shared;

inline std::int64_t now_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}
