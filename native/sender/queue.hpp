// A bounded lock-free queue: many threads put, and the sender's thread takes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "record.hpp"

namespace stepscope {

// D. Vyukov's bounded queue: each cell has a sequence number that says whose turn it is.
class Queue {
 public:
    // Allocates and touches all memory at once. The capacity is rounded up to a power of two.
    explicit Queue(std::size_t records);

    // False if the queue is full.
    bool put(const Record& record) noexcept;
    // Puts all of them in a row, or none. Cheaper than one by one: 30 ns against 44 for a kernel's
    // record (benchmarks/cupti.py). Most of that is waiting for memory that the reader's core wrote
    // last.
    bool put_all(const Record* records, std::size_t count) noexcept;
    // Takes the oldest records, at most this many; returns how many. Only one thread at a time may
    // call it.
    std::size_t take(Record* records, std::size_t most) noexcept;
    // The approximate number of records in the queue.
    std::size_t size() const noexcept;
    std::size_t capacity() const noexcept { return mask_ + 1; }

 private:
    struct Cell {
        std::atomic<std::uint64_t> turn;
        Record record;
    };

    std::size_t mask_;
    std::unique_ptr<Cell[]> cells_;
    alignas(64) std::atomic<std::uint64_t> put_{0};
    alignas(64) std::atomic<std::uint64_t> taken_{0};
};

}  // namespace stepscope
