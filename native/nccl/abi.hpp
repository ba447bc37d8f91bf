// The types that NCCL passes to profiler plugins, declared by ourselves: versions 4 to 6, which
// share all offsets. NCCL's wheels do not contain the headers; they are documented in NCCL's
// `ext-profiler/README.md`.
//
// An event descriptor; its union begins at byte 24:
//
//     0      8           16     24
//     | type | parentObj | rank | …            type: one byte in version 4, eight later
//
//     coll       seqNumber@24 func@32 count@56 datatype@72 algo@88 proto@96 parentGroup@104
//     p2p        func@24 datatype@40 count@48 peer@56 parentGroup@64
//     proxyOp    pid@24 channelId@28 peer@32 nSteps@36 chunkSize@40 isSend@44
//     proxyStep  step@24
//     kernelCh   channelId@24 pTimer@32
//
// A group is what one kernel executes (`ncclKernelPlan`). Up to NCCL 2.27 (version 4) it is the
// `parentObj`, and NCCL reports no operator whose group has no handle (`profiler.cc`,
// `ncclProfilerStartTaskEvents`); later it is `parentGroup`.
#pragma once

#include <cstdint>
#include <cstring>

namespace stepscope::nccl {

// Bits of the activation mask, which are also the types of events.
enum Event : std::uint64_t {
    GROUP = 1 << 0,
    COLL = 1 << 1,
    P2P = 1 << 2,
    PROXY_OP = 1 << 3,
    PROXY_STEP = 1 << 4,
    KERNEL_CH = 1 << 6,
};
constexpr int OURS = COLL | P2P | PROXY_OP | PROXY_STEP | KERNEL_CH;

enum State : int { SEND_WAIT = 9, KERNEL_CH_STOP = 22 };

// The description of an event that NCCL passes to us.
class Description {
 public:
    Description(const void* bytes, bool is_v4)
        : bytes_(static_cast<const char*>(bytes)), is_v4_(is_v4) {}

    template <class T>
    T at(std::size_t offset) const {
        T value;
        std::memcpy(&value, bytes_ + offset, sizeof value);
        return value;
    }
    const char* text(std::size_t offset) const { return at<const char*>(offset); }
    void* parent() const { return at<void*>(8); }
    // Only for a coll or a p2p.
    void* group(std::uint64_t type) const {
        if (is_v4_) return parent();
        return at<void*>(type == COLL ? 104 : 64);
    }

 private:
    const char* bytes_;
    bool is_v4_;
};

// The first eight bytes of a state's arguments; 0 if it has none.
inline std::uint64_t argument(const void* args) {
    std::uint64_t value = 0;
    if (args != nullptr) std::memcpy(&value, args, sizeof value);
    return value;
}

using Result = int;
constexpr Result SUCCESS = 0;  // always returned: our failures must not fail the training
using Logger = void (*)(int level, unsigned long flags, const char* file, int line,
                        const char* format, ...);
using StartEvent = Result (*)(void* context, void** handle, void* description);
using StopEvent = Result (*)(void* handle);
using RecordState = Result (*)(void* handle, int state, void* args);
using Finalize = Result (*)(void* context);

struct ProfilerV4 {
    const char* name;
    Result (*init)(void** context, int* mask, const char* comm_name, std::uint64_t comm_hash,
                   int nodes, int ranks, int rank, Logger logger);
    StartEvent start_event;
    StopEvent stop_event;
    RecordState record_state;
    Finalize finalize;
};

// Versions 5 and 6.
struct ProfilerV5 {
    const char* name;
    Result (*init)(void** context, std::uint64_t comm_id, int* mask, const char* comm_name,
                   int nodes, int ranks, int rank, Logger logger);
    StartEvent start_event;
    StopEvent stop_event;
    RecordState record_state;
    Finalize finalize;
};

}  // namespace stepscope::nccl
