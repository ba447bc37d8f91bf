// The memory into which CUPTI writes records: allocated once, touched beforehand, and reused.
//
// CUPTI requests and returns buffers on the training's threads, so both take a few atomic
// operations and no lock. A worker reads the returned buffers.
//
// Records for which there is no buffer are lost. From CUDA 12.9 on, CUPTI counts those itself.
// Earlier versions may crash if there is no buffer, so they get a page for one record, which is
// counted but not read.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace stepscope::cupti {

class Buffers {
 public:
    static constexpr unsigned COUNT = 32;  // two for each of sixteen threads that launch
    static constexpr std::size_t SIZE_BYTES = std::size_t{2} << 20;  // 9,000 kernels or more

    // False if there is no memory.
    bool allocate();
    // Frees the memory, unless CUPTI has taken a buffer.
    void release();

    void requested(std::uint8_t** buffer, std::size_t* size, std::size_t* most, bool may_decline);
    void completed(std::uint8_t* buffer, std::size_t valid);

    // Calls `read(buffer, valid bytes)` for each returned buffer, and frees it.
    template <class Read>
    void drain(Read read) {
        for (Mask done = done_.exchange(0, std::memory_order_acquire); done != 0;
             done &= done - 1) {
            const auto at = static_cast<unsigned>(__builtin_ctz(done));
            read(memory_ + at * SIZE_BYTES, valid_[at]);
            free_.fetch_or(Mask{1} << at, std::memory_order_release);
        }
    }

    // Whether CUPTI has any buffer, or has returned one that was not read yet.
    bool any_out() const { return free_.load(std::memory_order_acquire) != ALL; }
    std::uint64_t declined() const { return declined_.load(std::memory_order_relaxed); }
    // The number of records that went to a page that is never read.
    std::uint64_t spilled() const { return spilled_.load(std::memory_order_relaxed); }

 private:
    using Mask = std::uint32_t;
    static constexpr Mask ALL = ~Mask{0};
    static constexpr unsigned SPILL_COUNT = 64;
    static constexpr std::size_t SPILL_BYTES = 4096;  // for one record: the largest takes 248
    static constexpr std::size_t ALL_BYTES = COUNT * SIZE_BYTES + SPILL_COUNT * SPILL_BYTES;

    bool is_spill(const std::uint8_t* at) const {
        return at >= spill_ && at < spill_ + SPILL_COUNT * SPILL_BYTES;
    }

    std::uint8_t* memory_ = nullptr;
    std::uint8_t* spill_ = nullptr;
    std::atomic<Mask> free_{0};
    std::atomic<Mask> done_{0};
    std::atomic<unsigned> next_spill_{0};
    std::atomic<std::uint64_t> declined_{0};
    std::atomic<std::uint64_t> spilled_{0};
    std::size_t valid_[COUNT] = {};
};

}  // namespace stepscope::cupti
