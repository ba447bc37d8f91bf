// The memory that CUPTI writes records into: allocated once, touched beforehand, used again and
// again.
//
// CUPTI asks for buffers and hands them back on the training's threads, so both take a few atomic
// operations and no lock. A worker reads what was handed back.
//
// Lost: records for which there is no buffer. From CUDA 12.9 on CUPTI counts those itself. Earlier
// ones may crash when there is none, so they get a page for one record, which is counted and not
// read.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace stepscope::cupti {

class Buffers {
 public:
    static constexpr unsigned COUNT = 32;  // two for each of sixteen threads that launch
    static constexpr std::size_t SIZE_BYTES = std::size_t{2} << 20;  // 9,000 kernels or more

    // False where there is no memory.
    bool allocate();
    // Unless CUPTI has taken one.
    void release();

    void requested(std::uint8_t** buffer, std::size_t* size, std::size_t* most, bool may_decline);
    void completed(std::uint8_t* buffer, std::size_t valid);

    // Calls `read(buffer, valid bytes)` for each that was handed back, and frees it.
    template <class Read>
    void drain(Read read) {
        for (Mask done = done_.exchange(0, std::memory_order_acquire); done != 0;
             done &= done - 1) {
            const auto at = static_cast<unsigned>(__builtin_ctz(done));
            read(memory_ + at * SIZE_BYTES, valid_[at]);
            free_.fetch_or(Mask{1} << at, std::memory_order_release);
        }
    }

    // Whether CUPTI has any of them, or has handed one back that was not drained.
    bool any_out() const { return free_.load(std::memory_order_acquire) != ALL; }
    std::uint64_t declined() const { return declined_.load(std::memory_order_relaxed); }
    // Records that went to a page that nobody reads.
    std::uint64_t spilled() const { return spilled_.load(std::memory_order_relaxed); }

 private:
    using Mask = std::uint32_t;
    static constexpr Mask ALL = ~Mask{0};
    static constexpr unsigned SPILL_COUNT = 64;
    static constexpr std::size_t SPILL_BYTES = 4096;  // of one record: the largest takes 248
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
