// The entry points of `libnccl-profiler-stepscope.so`, which NCCL loads by NCCL_PROFILER_PLUGIN.
//
// Nothing here may fail: NCCL 2.30 unloads a plugin twice if its `init` fails. If nothing is to be
// recorded, the activation mask stays empty and NCCL calls nothing.

#include <cstdint>
#include <mutex>

#include "../sender/text.hpp"
#include "abi.hpp"
#include "recorder.hpp"

namespace stepscope::nccl {
namespace {

// Enough for collectives of milliseconds: some hundred a second of each kind.
constexpr std::size_t QUEUE_RECORDS = 1 << 14;

std::once_flag begun;
std::atomic<Recorder*> recorder{nullptr};  // never destroyed: NCCL's threads use it

void asked(std::string_view json) {
    const std::int64_t events = number_in(json, "nccl_events", UNKNOWN);
    Recorder* there = recorder.load();
    if (events != UNKNOWN && there != nullptr) there->watch(events);
}

void before_send(bool is_last) {
    if (Recorder* there = recorder.load()) there->turn(is_last);
}

void begin() {
    SenderOptions options;
    options.source = "nccl";
    options.queue_records = QUEUE_RECORDS;
    options.asked = asked;
    options.before_send = before_send;
    Sender* sender = Sender::start(options);
    if (sender != nullptr) recorder = new Recorder(*sender);
}

Result open(void** context, std::uint64_t hash, int* mask, const char* name, int nodes, int ranks,
            int rank) noexcept {
    if (context != nullptr) *context = nullptr;
    try {
        std::call_once(begun, begin);
        Recorder* there = recorder.load();
        if (context != nullptr && mask != nullptr && there != nullptr && !there->is_silent()) {
            *context = there->open(hash, name, nodes, ranks, rank, mask);
            return SUCCESS;
        }
    } catch (...) {  // no memory: then there is no recorder either
    }
    if (mask != nullptr) __atomic_store_n(mask, 0, __ATOMIC_RELAXED);
    return SUCCESS;
}

Result init_v4(void** context, int* mask, const char* name, std::uint64_t hash, int nodes,
               int ranks, int rank, Logger) {
    return open(context, hash, mask, name, nodes, ranks, rank);
}

Result init_v5(void** context, std::uint64_t id, int* mask, const char* name, int nodes, int ranks,
               int rank, Logger) {
    return open(context, id, mask, name, nodes, ranks, rank);
}

// `Type` is the integer type that holds an event's type.
template <class Type>
Result start_event(void* context, void** handle, void* description) {
    if (handle == nullptr) return SUCCESS;
    *handle = nullptr;  // a shim may have left anything in it
    Recorder* there = recorder.load(std::memory_order_acquire);
    if (description == nullptr || there == nullptr || there->is_silent()) return SUCCESS;
    const Description event(description, sizeof(Type) == 1);
    *handle = there->start(context, event.at<Type>(0), event);
    return SUCCESS;
}

Result stop_event(void* handle) {
    Recorder* there = recorder.load(std::memory_order_acquire);
    if (there != nullptr && !there->is_silent()) there->stop(handle);
    return SUCCESS;
}

Result record_state(void* handle, int state, void* args) {
    Recorder* there = recorder.load(std::memory_order_acquire);
    if (there != nullptr && !there->is_silent()) there->state(handle, state, args);
    return SUCCESS;
}

Result finalize(void* context) {
    Recorder* there = recorder.load(std::memory_order_acquire);
    if (there != nullptr && !there->is_silent()) there->close(context);
    return SUCCESS;
}

constexpr const char* NAME = "stepscope";
constexpr ProfilerV5 FROM_V5 = {NAME,       init_v5,      start_event<std::uint64_t>,
                                stop_event, record_state, finalize};

}  // namespace
}  // namespace stepscope::nccl

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED const stepscope::nccl::ProfilerV4 ncclProfiler_v4 = {
    stepscope::nccl::NAME,
    stepscope::nccl::init_v4,
    stepscope::nccl::start_event<std::uint8_t>,
    stepscope::nccl::stop_event,
    stepscope::nccl::record_state,
    stepscope::nccl::finalize};
EXPORTED const stepscope::nccl::ProfilerV5 ncclProfiler_v5 = stepscope::nccl::FROM_V5;
EXPORTED const stepscope::nccl::ProfilerV5 ncclProfiler_v6 = stepscope::nccl::FROM_V5;
