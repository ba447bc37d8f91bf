// Sends records from any thread of a training process to the processor, on its own thread.
//
// Putting a record never waits and never allocates: if there is no room, the record is dropped and
// counted by table. The thread wakes ten times a second, never blocks on the socket, and reconnects
// every second for as long as the process lives. What it sent just before a connection broke may
// not have been stored: the next hello reports those rows as at risk. Nothing here throws.
//
// A forked child sends nothing. At exit what is left is sent, for at most a second; `os._exit` and
// SIGKILL lose what came in the last tenth of a second.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>

#include "clock.hpp"
#include "connection.hpp"
#include "descriptor.hpp"
#include "identity.hpp"
#include "losses.hpp"
#include "names.hpp"
#include "queue.hpp"
#include "record.hpp"

namespace stepscope {

struct SenderOptions {
    const char* source = "";  // "cupti", "nccl": a new one replaces one of the same source
    std::size_t queue_records = 65536;  // 4.5 MiB
    // Called on the sender's thread with a request of the processor: the JSON of a CONTROL packet.
    void (*asked)(std::string_view json) = nullptr;
    // Called on the sender's thread before it looks for records, to put records that were held
    // back. In the last call all of them must be put.
    void (*before_send)(bool is_last) = nullptr;
};

class Sender {
 public:
    // Starts a sender, which is never destroyed: other threads may still put while the process
    // ends. Null if none is wanted: no socket is named, another process of this rank records, or
    // there is no memory or no thread.
    static Sender* start(const SenderOptions& options) noexcept;

    // Queues a record; if there is no room, counts it as lost and returns false.
    bool put(const Record& record) noexcept;
    // The same without counting a loss, for callers that wait and try again.
    bool try_put(const Record& record) noexcept;
    // Queues many at once, all or none of them; does not count a loss either.
    bool try_put_all(const Record* records, std::size_t count) noexcept;
    // Counts rows that were never made, or were useless.
    void lost(Kind kind, std::uint64_t rows) noexcept;
    // The number of a name, for use in records; takes a lock and may allocate. UNKNOWN if there is
    // no memory.
    std::int64_t name(std::string_view text) noexcept;
    // A sample of a counter, for the table `hardware`.
    void count(std::string_view metric, std::int64_t value) noexcept;
    // Wakes the thread now instead of within a tenth of a second.
    void wake() noexcept;
    // Sends what is left, for at most a second, and ends the thread. Also called at exit.
    void stop() noexcept;

    // In a forked child, and once stopped, nothing is recorded any more.
    bool is_silent() const noexcept { return silent_.load(std::memory_order_relaxed); }
    std::uint64_t dropped() const noexcept { return drops_.total(); }

    Sender(const Sender&) = delete;
    Sender& operator=(const Sender&) = delete;

 private:
    Sender(const SenderOptions& options, Identity who);
    bool launch();
    static void in_child() noexcept;
    static void at_exit() noexcept;

    void run() noexcept;
    void wait();
    void listen();
    void turn(bool is_last);
    void finish();
    bool connect();
    void disconnect();
    bool introduce();
    bool send_names();
    bool send_batch();
    bool has_more() const noexcept;
    bool said(Sent sent);
    void fill();
    void add_losses();
    void add_cost();
    void add_count(std::int64_t metric, std::int64_t value, std::int64_t since_ns);

    const SenderOptions options_;
    const Identity who_;
    const ClockPair clocks_;
    Queue queue_;
    Names names_;
    Drops drops_;
    std::atomic<bool> silent_{false};
    std::atomic<bool> stopping_{false};
    std::atomic<bool> ended_{false};
    Wake wake_;
    std::thread thread_;

    // used by the sender's thread only
    Connection connection_;
    Recent recent_;
    Record batch_[MOST_RECORDS];
    std::size_t batched_ = 0;
    bool introduced_ = false;
    bool clogged_ = false;
    std::size_t names_told_ = 0;
    Counts drops_told_{};
    std::uint64_t dropped_told_ = 0;
    std::int64_t filled_ns_ = 0;
    std::int64_t cost_ns_ = 0;
    std::int64_t retry_ns_ = 0;
    std::int64_t drop_names_[KINDS] = {};
    std::int64_t cost_name_ = 0;
};

}  // namespace stepscope
