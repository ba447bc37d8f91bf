#include "buffers.hpp"

#include <sys/mman.h>

namespace stepscope::cupti {

bool Buffers::allocate() {
    // populated now: otherwise the training's threads would take the page faults
    void* memory = mmap(nullptr, ALL_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) return false;
    memory_ = static_cast<std::uint8_t*>(memory);
    spill_ = memory_ + COUNT * SIZE_BYTES;
    free_ = ALL;
    return true;
}

void Buffers::release() {
    if (any_out()) return;
    free_ = 0;
    munmap(memory_, ALL_BYTES);
    memory_ = spill_ = nullptr;
}

void Buffers::requested(std::uint8_t** buffer, std::size_t* size, std::size_t* most,
                        bool may_decline) {
    Mask free = free_.load(std::memory_order_acquire);
    while (free != 0 && !free_.compare_exchange_weak(free, free & (free - 1))) {
    }
    *most = 0;
    *size = SIZE_BYTES;
    if (free != 0) {
        *buffer = memory_ + static_cast<unsigned>(__builtin_ctz(free)) * SIZE_BYTES;
        return;
    }
    declined_.fetch_add(1, std::memory_order_relaxed);
    *buffer = nullptr;
    *size = 0;
    if (may_decline) return;
    *buffer = spill_ + next_spill_.fetch_add(1) % SPILL_COUNT * SPILL_BYTES;
    *size = SPILL_BYTES;
    *most = 1;  // one record, so that the number of lost records is known
}

void Buffers::completed(std::uint8_t* buffer, std::size_t valid) {
    if (buffer >= memory_ && buffer < spill_) {
        const std::size_t at = static_cast<std::size_t>(buffer - memory_) / SIZE_BYTES;
        valid_[at] = valid;
        done_.fetch_or(Mask{1} << at, std::memory_order_release);
    } else if (is_spill(buffer) && valid > 0) {
        spilled_.fetch_add(1, std::memory_order_relaxed);
    }
}

}  // namespace stepscope::cupti
