// Records from any thread of a training process to the processor, by a thread of our own.
//
// Who puts never waits and never allocates: what finds no room is counted by table and dropped. The
// thread wakes ten times a second, never blocks on the socket, and tries again every second for as
// long as the process lives. What it sent just before a connection broke may not have been stored:
// the next hello names those rows as at risk. Nothing is thrown out of here.
//
// A forked child is silent at once. At exit what is left is sent, for at most a second; `os._exit`
// and SIGKILL lose what came in the last tenth of one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>

#include "clock.hpp"
#include "connection.hpp"
#include "identity.hpp"
#include "losses.hpp"
#include "names.hpp"
#include "queue.hpp"
#include "record.hpp"

namespace stepscope {

struct SenderOptions {
    const char* source = "";            // "cupti", "nccl": two of one source replace each other
    std::size_t queue_records = 65536;  // 4.5 MiB
    // Called on the sender's thread with what the processor asks: the JSON of a CONTROL packet.
    void (*asked)(std::string_view json) = nullptr;
    // Called on the sender's thread before it looks for records: who has some that were not ripe
    // puts them now. The last time they go whether ripe or not.
    void (*before_send)(bool is_last) = nullptr;
};

class Sender {
 public:
    // Starts one, which is never destroyed: other threads may still put while the process ends.
    // Null where none is wanted: no socket is named, another process of this rank records, or there
    // is no memory or no thread to be had.
    static Sender* start(const SenderOptions& options) noexcept;

    // Queues a record; false, and counted, where there is no room.
    bool put(const Record& record) noexcept;
    // The same for who waits and tries again: not counted.
    bool try_put(const Record& record) noexcept;
    // Many at once, all or none of them; not counted either.
    bool try_put_all(const Record* records, std::size_t count) noexcept;
    // So many rows never came to be, or came without use.
    void lost(Kind kind, std::uint64_t rows) noexcept;
    // The number of a name, to stand in records; takes a lock and may allocate. UNKNOWN without
    // memory.
    std::int64_t name(std::string_view text) noexcept;
    // A sample of a counter, for the table `hardware`.
    void count(std::string_view metric, std::int64_t value) noexcept;
    // Has the thread look now instead of in a tenth of a second.
    void wake() noexcept;
    // Sends what is left, for at most a second, and ends the thread. Also called at exit.
    void stop() noexcept;

    // In a forked child, and once stopped: nothing is recorded any more.
    bool is_silent() const noexcept { return silent_.load(std::memory_order_relaxed); }
    std::uint64_t dropped() const noexcept { return drops_.total(); }
    std::size_t waiting() const noexcept { return queue_.size(); }

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
    int wake_ = -1;
    std::thread thread_;

    // of the thread alone
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
