#include "queue.hpp"

namespace stepscope {
namespace {

std::size_t power_of_two(std::size_t least) {
    std::size_t size = 2;
    while (size < least) size *= 2;
    return size;
}

constexpr std::size_t AHEAD = 40;  // number of records whose memory is prefetched: 3 KB

}  // namespace

Queue::Queue(std::size_t records) : mask_(power_of_two(records) - 1), cells_(new Cell[mask_ + 1]) {
    for (std::size_t at = 0; at <= mask_; ++at) {
        cells_[at].turn.store(at, std::memory_order_relaxed);
        cells_[at].record = Record{};
    }
}

bool Queue::put(const Record& record) noexcept {
    std::uint64_t at = put_.load(std::memory_order_relaxed);
    while (true) {
        Cell& cell = cells_[at & mask_];
        const std::uint64_t turn = cell.turn.load(std::memory_order_acquire);
        if (turn == at && put_.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) {
            cell.record = record;
            cell.turn.store(at + 1, std::memory_order_release);
            return true;
        }
        if (turn < at) return false;
        if (turn > at) at = put_.load(std::memory_order_relaxed);
    }
}

bool Queue::put_all(const Record* records, std::size_t count) noexcept {
    if (count == 0 || count > capacity()) return count == 0;
    std::uint64_t at = put_.load(std::memory_order_relaxed);
    while (true) {
        // cells are freed in order: if the last one is free, all are
        const std::uint64_t last = at + count - 1;
        const std::uint64_t turn = cells_[last & mask_].turn.load(std::memory_order_acquire);
        if (turn < last) return false;
        if (turn > last) {
            at = put_.load(std::memory_order_relaxed);
        } else if (put_.compare_exchange_weak(at, at + count, std::memory_order_relaxed)) {
            break;
        }
    }
    for (const Record* end = records + count; records != end; ++records, ++at) {
        __builtin_prefetch(&cells_[(at + AHEAD) & mask_], 1);
        Cell& cell = cells_[at & mask_];
        cell.record = *records;
        cell.turn.store(at + 1, std::memory_order_release);
    }
    return true;
}

std::size_t Queue::take(Record* records, std::size_t most) noexcept {
    std::uint64_t at = taken_.load(std::memory_order_relaxed);
    std::size_t count = 0;
    for (; count < most; ++count, ++at) {
        Cell& cell = cells_[at & mask_];
        if (cell.turn.load(std::memory_order_acquire) != at + 1) break;
        records[count] = cell.record;
        cell.turn.store(at + mask_ + 1, std::memory_order_release);
    }
    taken_.store(at, std::memory_order_relaxed);
    return count;
}

std::size_t Queue::size() const noexcept {
    const std::uint64_t taken = taken_.load(std::memory_order_relaxed);
    const std::uint64_t put = put_.load(std::memory_order_relaxed);
    return put > taken ? static_cast<std::size_t>(put - taken) : 0;
}

}  // namespace stepscope
