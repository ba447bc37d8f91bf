// A fixed number of objects that NCCL refers to by opaque handles, on any thread, without locks.
//
// A handle is not a pointer. NCCL may use a handle after its object has ended (a late state), and a
// handle from another process (PXN) or a garbage value must not be dereferenced. It is
//
//     63        24 23     5 4    3 2 1 0
//     | generation | index | kind | 0 0 1 |
//
// An object lives while it is referenced; after that its slot gets the next generation.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace stepscope::nccl {

enum class Holds : std::uint64_t { op = 0, part = 1, step = 2, communicator = 3 };

template <class T, Holds KIND>
class Pool {
 public:
    struct Place {
        std::atomic<std::uint64_t> life{1 << 24};  // generation << 24 | references
        std::atomic<std::uint32_t> next{0};
        T thing{};
    };

    explicit Pool(std::uint32_t size) : size_(size), places_(new Place[size]) {
        for (std::uint32_t at = 0; at < size; ++at) places_[at].next = at + 2;
        places_[size - 1].next = NOBODY;
    }

    // An object that `prepare` has set up, with one reference; null if all slots are taken.
    template <class Prepare>
    void* create(Prepare prepare) noexcept {
        const std::uint32_t at = pop();
        if (at == NOBODY) return nullptr;
        Place& place = places_[at - 1];
        prepare(place.thing);
        const std::uint64_t life = place.life.load(std::memory_order_relaxed) + 1;
        place.life.store(life, std::memory_order_release);
        raise(at);
        return handle(at - 1, life >> 24);
    }

    // Adds a reference; null if the handle is not ours, or its object has ended.
    Place* refer(const void* handle) noexcept {
        const auto bits = reinterpret_cast<std::uint64_t>(handle);
        const std::uint64_t index = (bits >> 5) & 0x7FFFF;
        if ((bits & 0x1F) != (static_cast<std::uint64_t>(KIND) << 3 | 1) || index >= size_) {
            return nullptr;
        }
        Place& place = places_[index];
        std::uint64_t life = place.life.load(std::memory_order_acquire);
        while (life >> 24 == bits >> 24 && (life & REFERENCES) != 0) {
            if (place.life.compare_exchange_weak(life, life + 1, std::memory_order_acq_rel)) {
                return &place;
            }
        }
        return nullptr;
    }

    // Removes a reference; the last one ends the object.
    void release(Place* place) noexcept {
        const std::uint64_t before = place->life.fetch_sub(1, std::memory_order_acq_rel);
        if ((before & REFERENCES) == 1) recycle(place);
    }

    // Calls `end` for every object that `is_ripe` and has only one reference left, and removes
    // that.
    template <class IsRipe, class End>
    void sweep(IsRipe is_ripe, End end) noexcept {
        const std::uint32_t most = highest_.load(std::memory_order_acquire);
        for (std::uint32_t at = 0; at < most; ++at) {
            Place& place = places_[at];
            std::uint64_t life = place.life.load(std::memory_order_acquire);
            if ((life & REFERENCES) != 1 || !is_ripe(place.thing)) continue;
            if (!place.life.compare_exchange_strong(life, life - 1)) continue;
            end(place.thing);
            recycle(&place);
        }
    }

 private:
    static constexpr std::uint32_t NOBODY = 0;
    static constexpr std::uint64_t REFERENCES = 0xFFFFFF;

    static void* handle(std::uint64_t index, std::uint64_t generation) noexcept {
        return reinterpret_cast<void*>(generation << 24 | index << 5 |
                                       static_cast<std::uint64_t>(KIND) << 3 | 1);
    }

    // Free slots, counted from 1, as a stack; its head contains a counter against ABA.
    std::uint32_t pop() noexcept {
        std::uint64_t head = free_.load(std::memory_order_acquire);
        while (true) {
            const auto at = static_cast<std::uint32_t>(head);
            if (at == NOBODY) return NOBODY;
            const std::uint64_t next = places_[at - 1].next.load(std::memory_order_relaxed);
            const std::uint64_t after = ((head >> 32) + 1) << 32 | next;
            if (free_.compare_exchange_weak(head, after, std::memory_order_acq_rel)) return at;
        }
    }

    void recycle(Place* place) noexcept {
        const std::uint64_t life = place->life.load(std::memory_order_relaxed);
        place->life.store(((life >> 24) + 1) << 24, std::memory_order_release);
        const auto at = static_cast<std::uint32_t>(place - places_.get()) + 1;
        std::uint64_t head = free_.load(std::memory_order_relaxed);
        std::uint64_t after = 0;
        do {
            place->next.store(static_cast<std::uint32_t>(head), std::memory_order_relaxed);
            after = ((head >> 32) + 1) << 32 | at;
        } while (!free_.compare_exchange_weak(head, after, std::memory_order_acq_rel));
    }

    // How many slots were ever used: a sweep need not look at the others.
    void raise(std::uint32_t at) noexcept {
        std::uint32_t most = highest_.load(std::memory_order_relaxed);
        while (most < at && !highest_.compare_exchange_weak(most, at, std::memory_order_release)) {
        }
    }

    const std::uint32_t size_;
    std::unique_ptr<Place[]> places_;
    alignas(64) std::atomic<std::uint64_t> free_{1};
    alignas(64) std::atomic<std::uint32_t> highest_{0};
};

}  // namespace stepscope::nccl
