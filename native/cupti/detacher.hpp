// Takes CUPTI out of the process for a while: with all activities disabled, each call of CUDA still
// costs the host more as long as CUPTI is attached.
//
// CUPTI is to be detached where a call of CUDA ends (NVIDIA's guide, "Dynamic Detach"), so a
// subscriber to all calls is there from the request to the end of the next call. Any later call of
// CUPTI attaches it again.
#pragma once

#include <atomic>

#include "library.hpp"

namespace stepscope::cupti {

class Detacher {
 public:
    // Whether this CUPTI can be detached and attached again while CUDA graphs exist.
    static bool can(const Library& library);

    void use(const Library& library) { library_ = &library; }
    // Has CUPTI detached at the end of the next call of CUDA; false if it refuses, as when another
    // tool subscribes to calls.
    bool request() noexcept;
    // Takes a request back, or waits for its end: the next call of CUPTI attaches it again.
    void take_back() noexcept;
    // Whether CUPTI was detached, or is to be, and may not be called.
    bool is_away() const { return state_.load(std::memory_order_acquire) != State::attached; }

 private:
    enum class State { attached, requested, detaching, detached };

    static void at_call(void* self, std::uint32_t domain, std::uint32_t call, const void* data);
    void detach() noexcept;

    const Library* library_ = nullptr;
    void* subscriber_ = nullptr;
    std::atomic<State> state_{State::attached};
};

}  // namespace stepscope::cupti
