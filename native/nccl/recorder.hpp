// Turns NCCL's profiler events into records: operators (`comm_ops`) and network requests
// (`transfers`).
//
// An operator is reported once it has been enqueued and its parts have been quiet for a while: its
// parts (proxy operations, kernel channels) begin after NCCL has "stopped" the operator, which
// means that it was enqueued. The operator ends with its last part; if it has none, its end is
// unknown.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "../sender/sender.hpp"
#include "abi.hpp"
#include "codes.hpp"
#include "connections.hpp"
#include "device_clock.hpp"
#include "pool.hpp"

namespace stepscope::nccl {

struct Communicator {
    int ranks;
    std::int64_t name;                           // parsed by processor/operators/communicators.py
    std::uint32_t clock;                         // its index
    std::atomic<std::int64_t> calls[OPERATORS];  // number of calls of each operator before the next
    std::atomic<std::int64_t> point_to_points;
    std::atomic<std::uint32_t> launches;
};

struct Op {
    std::uint32_t clock;
    std::int64_t communicator, op_peer, seq, bytes, enqueue_ns;
    std::uint16_t flags;
    std::atomic<bool> is_enqueued;
    std::atomic<std::int64_t> touched_ns, end_ns;
    std::atomic<std::uint64_t> gpu_start, gpu_stop;  // on the device's clock
    std::atomic<std::int64_t> ahead;                 // how far the host's clock is ahead of it
};

// A proxy operation or a kernel channel.
struct Part {
    void* op;
    Connections::Connection* connection;  // of a sending part
    std::uint64_t gpu_start;
    std::int64_t ahead;
    std::atomic<std::uint64_t> gpu_stop;
    std::atomic<bool> is_stopped;
};

struct Step {
    Connections::Connection* connection;
    std::atomic<std::int64_t> bytes;  // UNKNOWN until it is posted
    std::atomic<bool> is_stopped;
};

class Recorder {
 public:
    static constexpr int AS_USUAL = 1 << 16;  // as in wire/control.py

    explicit Recorder(Sender& sender);

    void* open(std::uint64_t hash, const char* name, int nodes, int ranks, int rank, int* mask);
    void close(void* communicator) noexcept;
    // The handle of an event; null for events that are not followed.
    void* start(void* communicator, std::uint64_t type, const Description& event) noexcept;
    void stop(void* handle) noexcept;
    void state(void* handle, int state, const void* args) noexcept;

    // Called on the sender's thread.
    void turn(bool is_last) noexcept;
    // Sets what to record from now on: bits of `Event`, or AS_USUAL.
    void watch(std::int64_t events) noexcept;
    bool is_silent() const noexcept { return sender_.is_silent(); }

 private:
    using Operators = Pool<Op, Holds::op>;
    using Parts = Pool<Part, Holds::part>;
    using Steps = Pool<Step, Holds::step>;

    void* start_group(Communicator& in) noexcept;
    void* start_collective(Communicator& in, const Description& event) noexcept;
    void* start_point_to_point(Communicator& in, const Description& event) noexcept;
    void* start_operator(const Communicator& in, std::size_t code, int peer, std::int64_t seq,
                         std::int64_t count, Datatype type, std::uint16_t flags) noexcept;
    void* start_proxy(const Communicator& in, const Description& event) noexcept;
    void* start_channel(const Description& event) noexcept;
    void* start_part(void* op, Connections::Connection* connection, std::uint64_t gpu_ns) noexcept;
    void* start_step(const Description& event) noexcept;
    void* lost(Kind kind) noexcept;
    bool stop_operator(void* handle) noexcept;
    bool stop_part(void* handle) noexcept;
    bool stop_step(void* handle) noexcept;
    void end_part(const Part& part) noexcept;
    void tell(const Op& op) noexcept;
    void set_times(const Op& op, stepscope::Record& record) noexcept;
    void tell_troubles() noexcept;
    void set_mask(std::int64_t now_ns) noexcept;
    int usual(std::int64_t now_ns) const noexcept;

    Sender& sender_;
    const int pid_;  // cached: a system call each time costs as much as all the rest
    std::int64_t operators_[OPERATORS];  // their names
    Pool<Communicator, Holds::communicator> communicators_;
    Operators ops_;
    Parts parts_;
    Steps steps_;
    Connections connections_;
    std::atomic<int*> mask_{nullptr};
    std::atomic<bool> has_network_{false};  // whether any communicator has several nodes
    std::atomic<int> asked_{AS_USUAL};
    // states and stops of events that have ended, or never existed
    std::atomic<std::uint64_t> stale_events_{0};
    std::uint64_t stale_events_told_ = 0;
    std::int64_t transfers_ns_ = 0;
    std::unique_ptr<DeviceClock[]> clocks_;  // one per communicator, each of which has one device
    std::atomic<std::uint32_t> opened_{0};
};

}  // namespace stepscope::nccl
