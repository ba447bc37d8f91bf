// The parts of operators: the work of their proxies, step by step, and the channels of their
// kernels.

#include <algorithm>

#include "atomics.hpp"
#include "recorder.hpp"

namespace stepscope::nccl {

void* Recorder::start_proxy(const Communicator& in, const Description& event) noexcept {
    Connections::Connection* connection = nullptr;
    if (event.at<int>(44) != 0) {
        connection = connections_.find(in.name, event.at<int>(32));
        if (connection == nullptr) lost(Kind::transfer);
    }
    return start_part(event.parent(), connection, 0);
}

void* Recorder::start_channel(const Description& event) noexcept {
    return start_part(event.parent(), nullptr, event.at<std::uint64_t>(32));
}

// Its operator lives on until it stops.
void* Recorder::start_part(void* op, Connections::Connection* connection,
                           std::uint64_t gpu_ns) noexcept {
    auto* parent = ops_.refer(op);
    void* handle = parts_.create([&](Part& part) {
        part.op = parent == nullptr ? nullptr : op;
        part.connection = connection;
        part.gpu_start = gpu_ns;
        part.ahead = gpu_ns == 0 ? DeviceClock::UNSEEN : DeviceClock::ahead(now_ns(), gpu_ns);
        part.gpu_stop = 0;
        part.is_stopped = false;
    });
    if (handle != nullptr) return handle;
    if (parent != nullptr) ops_.release(parent);
    return lost(connection == nullptr ? Kind::comm : Kind::transfer);
}

// Only sending proxies are followed.
void* Recorder::start_step(const Description& event) noexcept {
    auto* part = parts_.refer(event.parent());
    if (part == nullptr) return nullptr;
    Connections::Connection* connection = part->thing.connection;
    parts_.release(part);
    if (connection == nullptr) return nullptr;
    void* handle = steps_.create([connection](Step& step) {
        step.connection = connection;
        step.bytes = UNKNOWN;
        step.is_stopped = false;
    });
    return handle == nullptr ? lost(Kind::transfer) : handle;
}

bool Recorder::stop_part(void* handle) noexcept {
    auto* place = parts_.refer(handle);
    if (place == nullptr) return false;
    if (!place->thing.is_stopped.exchange(true)) {
        end_part(place->thing);
        parts_.release(place);
    }
    parts_.release(place);
    return true;
}

void Recorder::end_part(const Part& part) noexcept {
    auto* op = ops_.refer(part.op);
    if (op == nullptr) return;
    const std::int64_t now = now_ns();
    raise(op->thing.touched_ns, now);
    raise(op->thing.end_ns, now);
    const std::uint64_t stop = part.gpu_stop.load(std::memory_order_relaxed);
    if (part.gpu_start != 0 && stop >= part.gpu_start) {
        lower(op->thing.gpu_start, part.gpu_start);
        raise(op->thing.gpu_stop, stop);
        lower(op->thing.ahead, std::min(part.ahead, DeviceClock::ahead(now, stop)));
    }
    ops_.release(op);
    ops_.release(op);
}

bool Recorder::stop_step(void* handle) noexcept {
    auto* place = steps_.refer(handle);
    if (place == nullptr) return false;
    Step& step = place->thing;
    if (!step.is_stopped.exchange(true)) {
        const std::int64_t bytes = step.bytes.load(std::memory_order_relaxed);
        if (bytes != UNKNOWN) {
            step.connection->completed.fetch_add(1, std::memory_order_release);
            step.connection->bytes.fetch_add(bytes, std::memory_order_release);
        }
        steps_.release(place);
    }
    steps_.release(place);
    return true;
}

}  // namespace stepscope::nccl
