// NCCL, as far as a profiler plugin sees of it: calls the plugin's tables in its order, told what
// to do line by line (`driver.py`). All descriptors are as long as NCCL's of that version.

#include <unistd.h>

#include <atomic>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "nccl/abi.hpp"
#include "nccl/device_clock.hpp"
#include "sender/clock.hpp"

extern "C" const stepscope::nccl::ProfilerV4 ncclProfiler_v4;
extern "C" const stepscope::nccl::ProfilerV5 ncclProfiler_v5, ncclProfiler_v6;

namespace {

using namespace stepscope::nccl;

int mask = 0;
std::vector<void*> communicators;

// One event's description: on the heap, so that a byte too far is found.
class Described {
 public:
    Described(int version, std::uint64_t type, void* parent)
        : size_(version == 4 ? 104 : 112), bytes_(new char[size_]()) {
        if (version == 4) {
            bytes_[0] = static_cast<char>(type);
            std::memset(bytes_.get() + 1, 0xAB, 7);  // padding holds anything
        } else {
            put(0, type);
        }
        put(8, parent);
    }

    template <class T>
    Described& put(std::size_t offset, T value) {
        std::memcpy(bytes_.get() + offset, &value, sizeof value);
        return *this;
    }
    void* get() { return bytes_.get(); }

 private:
    std::size_t size_;
    std::unique_ptr<char[]> bytes_;
};

// What all versions share.
struct Table {
    StartEvent start;
    StopEvent stop;
    RecordState state;
    Finalize finalize;
};

template <class T>
Table shared(const T& table) {
    return {table.start_event, table.stop_event, table.record_state, table.finalize};
}

Table table_of(int version) {
    if (version == 4) return shared(ncclProfiler_v4);
    return shared(version == 5 ? ncclProfiler_v5 : ncclProfiler_v6);
}

class Caller {
 public:
    Caller(int version, void* context)
        : version_(version), table_(table_of(version)), context_(context) {}

    // What one kernel is to carry out. Up to 2.27 NCCL tells of no operator whose group has no
    // handle.
    void group() {
        Described event(version_, GROUP, nullptr);
        group_ = start(event);
        if (version_ == 4 && group_ == nullptr) std::abort();
        table_.stop(group_);
    }

    void* collective(const char* func, std::uint64_t seq, std::uint64_t count, const char* type) {
        Described event(version_, COLL, version_ == 4 ? group_ : nullptr);
        if (version_ != 4) event.put(104, group_);
        event.put(24, seq).put(32, func).put(56, count).put(72, type);
        return start(event.put(88, "RING").put(96, "SIMPLE"));
    }

    void* point_to_point(const char* func, int peer, std::uint64_t count, const char* type) {
        Described event(version_, P2P, version_ == 4 ? group_ : nullptr);
        if (version_ != 4) event.put(64, group_);
        return start(event.put(24, func).put(40, type).put(48, count).put(56, peer));
    }

    void* proxy(void* op, int peer, int is_send, int pid = getpid()) {
        Described event(version_, PROXY_OP, op);
        return start(event.put(24, pid).put(32, peer).put(36, 1).put(44, is_send));
    }

    // Steps of a proxy operation as its progress thread sees them.
    void steps(void* proxy, int count, std::uint64_t bytes, bool is_send) {
        for (int at = 0; at < count; ++at) {
            void* step = start(Described(version_, PROXY_STEP, proxy).put(24, at));
            for (const int waits : {8, 20}) table_.state(step, waits, nullptr);
            table_.state(step, is_send ? static_cast<int>(SEND_WAIT) : 10, &bytes);
            table_.stop(step);
        }
    }

    void channel(void* op, std::uint64_t begin, std::uint64_t end) {
        void* handle = start(Described(version_, KERNEL_CH, op).put(32, begin));
        table_.state(handle, KERNEL_CH_STOP, &end);
        table_.stop(handle);
    }

    void* start(Described& event, void* context) {
        void* handle = reinterpret_cast<void*>(0xBAD);  // shims leave there what they like
        if (table_.start(context, &handle, event.get()) != SUCCESS) std::abort();
        return handle;
    }
    void* start(Described& event) { return start(event, context_); }
    void stop(void* handle) { table_.stop(handle); }
    const Table& table() const { return table_; }

 private:
    int version_;
    Table table_;
    void* context_;
    void* group_ = nullptr;
};

// The device's clock is nobody else's.
constexpr std::uint64_t DEVICE_AHEAD_NS = 7'000'000'000'000;

std::uint64_t device_ns() {
    return static_cast<std::uint64_t>(stepscope::now_ns()) + DEVICE_AHEAD_NS;
}

// The whole life of an all-reduce: enqueued, then carried out by the proxy's thread.
void all_reduce(Caller& caller, std::uint64_t seq, int steps) {
    caller.group();
    void* op = caller.collective("AllReduce", seq, 1024, "ncclBfloat16");
    caller.stop(op);
    for (const int is_send : {1, 0}) {
        void* proxy = caller.proxy(op, 1, is_send);
        caller.steps(proxy, steps, 512, is_send != 0);
        caller.stop(proxy);
    }
    const std::uint64_t now = device_ns();
    for (const std::uint64_t channel : {0, 1}) {
        caller.channel(op, now - 3000 + channel, now - channel);
    }
}

// What a device's clock comes to, by differences and the times they were told of.
void device_clock(const char* words) {
    DeviceClock clock;
    std::istringstream told(words);
    for (std::int64_t ahead = 0, at_ns = 0; told >> ahead >> at_ns;) {
        std::printf("%" PRId64 " ", clock.correct(ahead, at_ns));
    }
    std::puts("");
}

void init(const char* words) {
    int version = 0, nodes = 0, ranks = 0, rank = 0;
    std::uint64_t hash = 0;
    char name[64] = "";
    std::sscanf(words, "%d %d %d %d %" SCNx64 " %63[^\n]", &version, &nodes, &ranks, &rank, &hash,
                name);
    const char* named = *name == '\0' ? nullptr : name;
    void* context = reinterpret_cast<void*>(0xBAD);
    if (version == 4) {
        ncclProfiler_v4.init(&context, &mask, named, hash, nodes, ranks, rank, nullptr);
    } else {
        const ProfilerV5& table = version == 5 ? ncclProfiler_v5 : ncclProfiler_v6;
        table.init(&context, hash, &mask, named, nodes, ranks, rank, nullptr);
    }
    communicators.push_back(context);
    std::printf("%d\n", context != nullptr);
}

void collectives(int version, int count, int steps) {
    Caller caller(version, communicators.back());
    for (int at = 0; at < count; ++at) all_reduce(caller, static_cast<std::uint64_t>(at), steps);
    std::puts("done");
}

// Each thread on a communicator of its own, and all of them with proxies of one more operator.
void from_threads(int version, int threads, int count) {
    Caller shared(version, communicators[0]);
    void* common = shared.collective("Broadcast", 0, 77, "ncclInt8");
    std::vector<std::thread> all;
    for (int thread = 0; thread < threads; ++thread) {
        all.emplace_back([=] {
            Caller caller(version, communicators[static_cast<std::size_t>(thread) + 1]);
            for (int at = 0; at < count; ++at) {
                all_reduce(caller, static_cast<std::uint64_t>(at), 2);
                caller.channel(common, 100, 200);
            }
        });
    }
    for (std::thread& one : all) one.join();
    shared.stop(common);
    std::puts("done");
}

void point_to_points(int version) {
    Caller caller(version, communicators.back());
    caller.group();
    for (const char* func : {"Send", "Recv"}) {
        caller.stop(caller.point_to_point(func, 3, 100, "ncclFloat32"));
    }
    std::puts("done");
}

// Two steps are posted and one of them completes; what receives waits. Nothing of it ends.
void hang(int version) {
    Caller caller(version, communicators.back());
    void* op = caller.collective("AllGather", 0, 4096, "ncclInt8");
    caller.stop(op);
    void* proxy = caller.proxy(op, 1, 1);
    caller.steps(proxy, 1, 300, true);
    std::uint64_t bytes = 200;
    void* step = caller.start(Described(version, PROXY_STEP, proxy).put(24, 1));
    caller.table().state(step, SEND_WAIT, &bytes);
    void* waits = caller.start(Described(version, PROXY_STEP, caller.proxy(op, 1, 0)).put(24, 0));
    caller.table().state(waits, 10, nullptr);
    std::puts("done");
}

// Context and parent are pointers of another process, which must not be followed.
void for_another(int version) {
    auto* poison = reinterpret_cast<void*>(0xDEADBEEF0001);
    Caller caller(version, poison);
    void* proxy = caller.proxy(poison, 1, 1, getpid() + 1);
    caller.steps(proxy, 3, 512, true);
    caller.stop(proxy);
    std::printf("%d\n", proxy != nullptr);
}

// What real NCCLs do wrong: states and stops that come late or twice, handles of nothing.
void wrongly(int version) {
    Caller caller(version, communicators.back());
    void* op = caller.collective("AllReduce", 0, 10, "ncclFloat16");
    void* proxy = caller.proxy(op, 1, 1);
    void* step = caller.start(Described(version, PROXY_STEP, proxy).put(24, 0));
    std::uint64_t bytes = 64;
    caller.table().state(step, SEND_WAIT, &bytes);
    caller.table().state(step, SEND_WAIT, &bytes);
    caller.stop(proxy);
    caller.stop(proxy);
    caller.stop(step);
    caller.table().state(step, SEND_WAIT, &bytes);
    caller.stop(step);
    caller.table().state(proxy, 19, nullptr);
    for (const std::uint64_t garbage : {1ULL, 0xFFFFFFFFFFFFFFFFULL, 0xDEADBEEFULL}) {
        caller.stop(reinterpret_cast<void*>(garbage));
        caller.table().state(reinterpret_cast<void*>(garbage), SEND_WAIT, nullptr);
    }
    caller.stop(nullptr);
    caller.table().state(nullptr, SEND_WAIT, nullptr);
    caller.stop(op);
    caller.stop(op);
    std::puts("done");
}

// Events that we do not follow, and those of a communicator that is gone.
void unknown(int version) {
    Caller caller(version, communicators.back());
    int nulls = 0;
    for (const std::uint64_t type : {32, 128}) {
        Described event(version, type, nullptr);
        nulls += caller.start(event) == nullptr;
    }
    caller.table().finalize(communicators.back());
    caller.table().finalize(communicators.back());
    nulls += caller.collective("AllReduce", 0, 10, "ncclFloat16") == nullptr;
    nulls += caller.collective(nullptr, 0, 10, nullptr) == nullptr;
    std::printf("%d\n", nulls);
}

void exhaust(int version, int count) {
    Caller caller(version, communicators.back());
    int nulls = 0;
    for (int at = 0; at < count; ++at) {
        void* op = caller.collective("AllReduce", static_cast<std::uint64_t>(at), 1, "ncclInt8");
        nulls += op == nullptr;
        caller.stop(op);
    }
    std::printf("%d\n", nulls);
}

void strange_words(int version) {
    Caller caller(version, communicators.back());
    caller.stop(caller.collective("AlltoAllv2", 4, 3, "ncclFloat4"));
    caller.stop(caller.collective(nullptr, 0, ~0ULL, nullptr));
    std::puts("done");
}

}  // namespace

void obey_nccl(const std::string& order, const char* words) {
    int version = 0, first = 0, second = 0;
    std::sscanf(words, "%d %d %d", &version, &first, &second);
    if (order == "init") init(words);
    if (order == "mask") std::printf("%d\n", __atomic_load_n(&mask, __ATOMIC_RELAXED));
    if (order == "collectives") collectives(version, first, second);
    if (order == "device-clock") device_clock(words);
    if (order == "threads") from_threads(version, first, second);
    if (order == "point-to-points") point_to_points(version);
    if (order == "hang") hang(version);
    if (order == "for-another") for_another(version);
    if (order == "wrongly") wrongly(version);
    if (order == "unknown") unknown(version);
    if (order == "exhaust") exhaust(version, first);
    if (order == "strange-words") strange_words(version);
}
