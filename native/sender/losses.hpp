// Exact counts of what is lost: records for which there was no room, and rows that a processor may
// have received but not stored.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "record.hpp"

namespace stepscope {

using Counts = std::array<std::uint64_t, KINDS>;

// Counts by kind; any thread may add.
class Drops {
 public:
    void add(Kind kind, std::uint64_t rows) noexcept;
    std::uint64_t of(std::size_t kind) const noexcept;
    std::uint64_t total() const noexcept;

 private:
    std::array<std::atomic<std::uint64_t>, KINDS> dropped_{};
};

// The rows sent recently; corresponds to `Sender._recent` in collect/sender.py.
class Recent {
 public:
    void sent(const Record* records, std::size_t count, std::int64_t now_ns);
    // Called when a hello has reported them.
    void named();
    // The processor has stored what the hello reported.
    void confirmed() { named_.clear(); }
    // The processor that was told last may have died before it stored that.
    void disconnected();
    // The field `at_risk` of a hello, with a leading comma; empty if no rows are at risk.
    std::string at_risk() const;

 private:
    struct Sent {
        std::int64_t start_ns, end_ns;
        Counts rows;
    };

    Counts rows() const;

    // All that a hello has named is one element, so that processors that die again and again do
    // not fill the memory.
    std::vector<Sent> sent_, named_;
};

}  // namespace stepscope
