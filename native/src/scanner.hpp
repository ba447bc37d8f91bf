// Reads the events of a trace, chunk by chunk, into columns of numbers.
//
//     …}, {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 12.345, "dur": 3, "args": {…}}, {…
//         └─ Event ─▶ Scanner::keep ─▶ one row of the table of its category
//
// Lossy where the file is damaged: a malformed event is counted and left out, and the next one is
// found by counting brackets. Memory: the chunk, the longest event, and the columns.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "event.hpp"
#include "interner.hpp"

namespace stepscope {

constexpr std::size_t LONGEST_EVENT_BYTES = 4 << 20;  // far larger than any real event
// Events of one file; about 3 GB of columns, and a row's number fits 32 bits.
constexpr std::size_t MOST_EVENTS = 50'000'000;
// Bytes of all distinct names and threads of a file; real traces have some thousand names.
constexpr std::size_t MOST_NAME_BYTES = 256 << 20;
// Distinct calls of a file: a job has some hundred; this many take 200 MB of memory.
constexpr std::size_t MOST_CALLS = 1 << 17;
// Bytes of the arguments of all distinct calls; a job needs some hundred thousand.
constexpr std::size_t MOST_CALL_BYTES = 64 << 20;

enum class Kind : std::uint8_t { cpu, mark, runtime, device, python, calls, KINDS };
constexpr std::size_t KINDS = static_cast<std::size_t>(Kind::KINDS);

constexpr std::array<const char*, 11> COLUMNS = {
    "start_ns", "duration_ns", "name",     "thread", "correlation", "stream",
    "call",     "external",    "sequence", "id",     "parent",
};

// Grows in blocks: nothing is copied, and less than one block is unused.
class Column {
 public:
    void append(std::int64_t value) {
        if (size_ % BLOCK == 0) blocks_.emplace_back(new std::int64_t[BLOCK]);
        blocks_.back()[size_++ % BLOCK] = value;
    }
    std::size_t size() const { return size_; }
    std::int64_t operator[](std::size_t row) const { return blocks_[row / BLOCK][row % BLOCK]; }

 private:
    static constexpr std::size_t BLOCK = 4096;
    std::vector<std::unique_ptr<std::int64_t[]>> blocks_;
    std::size_t size_ = 0;
};

using Table = std::array<Column, COLUMNS.size()>;

// A table's rows in order of time; of rows with the same time, longer ones first.
std::vector<std::uint32_t> in_order(const Table& table);

class Scanner {
 public:
    // Which categories of events go to which table; the prefixes of the names of communication
    // calls.
    Scanner(std::vector<std::pair<std::string, Kind>> categories, std::vector<std::string> calls);

    // Takes the next bytes; the first ones are those after the array's opening bracket. Returns
    // whether more are wanted: not if the array is closed or a limit is reached.
    bool feed(std::string_view data);
    // Handles the bytes that were kept because more might have come.
    void finish();

    Table& table(Kind kind) { return tables_[static_cast<std::size_t>(kind)]; }
    const Interner& names() const { return names_; }
    const Interner& threads() const { return threads_; }
    const Interner& calls() const { return calls_; }

    bool closed() const { return closed_; }
    // Whether one event is longer than any real event: reading stopped there.
    bool oversized() const { return oversized_; }
    // Whether this is no trace of a job, but a file that would fill the memory: reading stopped
    // there.
    bool full() const;
    // Bytes that are not yet a complete event; if the array is closed, the bytes after it.
    std::string_view rest() const { return held_; }
    std::size_t kept() const { return kept_; }
    std::size_t unreadable() const { return unreadable_; }
    std::size_t impossible() const { return impossible_; }
    // The number of a process's first thread, -1 if it is unknown.
    std::int64_t first_thread() const { return first_thread_ == NONE ? -1 : first_thread_; }
    // The number of the device of the first activity on one; -1 if there is none.
    std::int64_t first_device() const { return first_device_; }

 private:
    static constexpr std::int64_t NONE = std::numeric_limits<std::int64_t>::max();

    bool wants_more() const { return !closed_ && !oversized_ && !full(); }
    void scan(bool last);
    bool choose_unit(bool last);
    template <class Visit>
    std::size_t each_event(Visit&& visit);
    const Kind* kind_of(const Event& event) const;
    void keep(const Event& event, Kind kind);
    void keep_arguments(const Event& event, Kind kind, Table& table);
    void keep_call(const Event& event, Table& table);
    std::int64_t thread_of(const Event& event);
    std::int64_t call_of(const Event& event);

    std::vector<std::pair<std::string, Kind>> categories_;
    std::vector<std::string> call_prefixes_;
    std::array<Table, KINDS> tables_;
    Interner names_, threads_, calls_;
    Event event_;
    std::string call_;
    std::string held_;
    std::size_t enough_ = 0;
    int power_ = -1;
    bool closed_ = false, oversized_ = false;
    std::size_t kept_ = 0, unreadable_ = 0, impossible_ = 0;
    std::int64_t first_thread_ = NONE;
    std::int64_t first_device_ = -1;
};

}  // namespace stepscope
