// A libcupti for machines without a GPU: it hands out activity records as the real one does, of
// kernels that a test says were launched.
//
// As in the real one each thread fills a buffer of its own, buffers come back on a thread that is
// nobody's, and what finds no buffer is counted. Its version is MOCK_CUPTI_VERSION; before
// CUDA 12.9 it ends the process when it gets no buffer, as the real one may. A kernel's record
// takes MOCK_CUPTI_KERNEL_BYTES: a few large ones fill all buffers.
//
// A subscriber is called at the end of each launch. Detached, it forgets everything; it ends the
// process if a buffer is still out then, as those are lost in the real one.
#include <time.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace {

using Requested = void (*)(std::uint8_t**, std::size_t*, std::size_t*);
using Completed = void (*)(void*, std::uint32_t, std::uint8_t*, std::size_t, std::size_t);
using Subscriber = void (*)(void*, std::uint32_t, std::uint32_t, const void*);

enum : std::uint32_t { MEMCPY = 1, MEMSET = 2, KERNEL = 10, SYNCHRONIZATION = 38, GRAPH = 51 };
enum : int { SUCCESS = 0, AT_END = 12, OTHER_SUBSCRIBER = 39, NO_DRIVER = 999 };

struct Filling {
    std::uint8_t* buffer = nullptr;
    std::size_t size = 0, used = 0, most = 0, records = 0;
    Completed completed = nullptr;
};

constexpr std::size_t LARGEST = 256;  // of what a record holds

std::uint32_t setting(const char* name, std::uint32_t otherwise) {
    const char* text = std::getenv(name);
    return text == nullptr ? otherwise : static_cast<std::uint32_t>(std::atoi(text));
}

std::uint32_t version() {
    static const std::uint32_t version = setting("MOCK_CUPTI_VERSION", 130001);
    return version;
}

std::size_t size_of(std::uint32_t kind) {
    static const std::size_t kernel_bytes = setting("MOCK_CUPTI_KERNEL_BYTES", 216);
    switch (kind) {
        case KERNEL: return kernel_bytes;
        case MEMCPY: return 96;
        case MEMSET: return 88;
        default: return 56;
    }
}

std::int64_t clock_ns(clockid_t clock) {
    timespec now{};
    clock_gettime(clock, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

class Mock {
 public:
    static Mock& one() {
        static Mock& mock = *new Mock;
        return mock;
    }

    int enable(std::uint32_t kind, bool wanted) {
        if (std::getenv("MOCK_CUPTI_REFUSES") != nullptr) return NO_DRIVER;
        const std::lock_guard<std::mutex> hold(mutex_);
        wanted_[kind] = wanted;
        return SUCCESS;
    }

    void callbacks(Requested requested, Completed completed) {
        const std::lock_guard<std::mutex> hold(mutex_);
        requested_ = requested;
        completed_ = completed;
    }

    // One record, if its kind is wanted.
    void record(std::uint32_t kind, const std::uint8_t* bytes) {
        Filling full;
        {
            const std::lock_guard<std::mutex> hold(mutex_);
            if (!wanted_[kind]) return;
            add(mine(), bytes, size_of(kind), full);
        }
        deliver(full);
    }

    void flush() {
        std::vector<Filling> all;
        {
            const std::lock_guard<std::mutex> hold(mutex_);
            for (Filling* one : threads_) {
                if (one->used > 0) all.push_back(std::exchange(*one, Filling{}));
            }
        }
        for (const Filling& one : all) deliver(one);
        std::unique_lock<std::mutex> hold(queue_mutex_);
        empty_.wait(hold, [this] { return held_ || (queue_.empty() && !delivering_); });
    }

    std::size_t take_dropped() { return dropped_.exchange(0); }

    int subscribe(Subscriber subscriber, void* data) {
        const std::lock_guard<std::mutex> hold(mutex_);
        if (subscriber_ != nullptr) return OTHER_SUBSCRIBER;
        subscriber_ = subscriber;
        subscribers_data_ = data;
        return SUCCESS;
    }
    void unsubscribe() {
        const std::lock_guard<std::mutex> hold(mutex_);
        subscriber_ = nullptr;
    }
    // A call of CUDA ends.
    void end_call() {
        mutex_.lock();
        const Subscriber subscriber = subscriber_;
        void* data = subscribers_data_;
        mutex_.unlock();
        const std::uint32_t at_end = 1, of_runtime = 2;
        if (subscriber != nullptr) subscriber(data, of_runtime, 211, &at_end);
    }
    void finalize() {
        const std::lock_guard<std::mutex> hold(mutex_);
        for (const Filling* one : threads_) {
            if (one->buffer != nullptr) std::abort();
        }
        std::fill(std::begin(wanted_), std::end(wanted_), false);
        subscriber_ = nullptr;
        requested_ = nullptr;
        completed_ = nullptr;
        ++finalized_;
    }
    int finalized() const { return finalized_; }

    // Keeps full buffers to itself, or no more.
    void hold(bool wanted) {
        const std::lock_guard<std::mutex> hold(queue_mutex_);
        held_ = wanted;
        there_.notify_one();
    }

    // From now on times are another profiler's: thousands of seconds off, 2.5 ticks a nanosecond.
    void use_ticks() { ticks_ = true; }
    std::int64_t now() const {
        if (!ticks_) return clock_ns(CLOCK_REALTIME);
        return 1'000'000'000'000LL + clock_ns(CLOCK_MONOTONIC) * 5 / 2;
    }
    std::int64_t ticks(std::int64_t ns) const { return ticks_ ? ns * 5 / 2 : ns; }

 private:
    Mock() {
        std::thread([this] { hand_over(); }).detach();
    }

    Filling& mine() {
        thread_local Filling* filling = nullptr;
        if (filling == nullptr) threads_.push_back(filling = new Filling);
        return *filling;
    }

    void add(Filling& filling, const std::uint8_t* bytes, std::size_t size, Filling& full) {
        if (filling.buffer == nullptr && !request(filling)) {
            ++dropped_;
            return;
        }
        std::memcpy(filling.buffer + filling.used, bytes, LARGEST);
        filling.used += size;
        ++filling.records;
        const bool is_full = filling.used + LARGEST > filling.size;
        if (is_full || filling.records == filling.most) full = std::exchange(filling, Filling{});
    }

    bool request(Filling& filling) {
        filling = Filling{};
        filling.completed = completed_;
        requested_(&filling.buffer, &filling.size, &filling.most);
        if (filling.buffer == nullptr && version() < 27) std::abort();
        return filling.buffer != nullptr;
    }

    // To who registered last, not to who gave the buffer: as the real one.
    void deliver(const Filling& full) {
        if (full.buffer == nullptr) return;
        const std::lock_guard<std::mutex> hold(queue_mutex_);
        queue_.push_back(full);
        there_.notify_one();
    }

    void hand_over() {
        std::unique_lock<std::mutex> hold(queue_mutex_);
        while (true) {
            there_.wait(hold, [this] { return !queue_.empty() && !held_; });
            const std::vector<Filling> batch = std::exchange(queue_, {});
            delivering_ = true;
            hold.unlock();
            for (const Filling& one : batch) hand_over(one);
            hold.lock();
            delivering_ = false;
            empty_.notify_all();
        }
    }

    void hand_over(const Filling& full) {
        mutex_.lock();
        const Completed completed = completed_;
        mutex_.unlock();
        completed(nullptr, 0, full.buffer, full.size, full.used);
    }

    std::mutex mutex_, queue_mutex_;
    std::condition_variable there_, empty_;
    std::vector<Filling*> threads_;
    std::vector<Filling> queue_;
    bool delivering_ = false, held_ = false;
    bool wanted_[64] = {};
    std::atomic<std::size_t> dropped_{0};
    std::atomic<bool> ticks_{false};
    std::atomic<int> finalized_{0};
    Requested requested_ = nullptr;
    Completed completed_ = nullptr;
    Subscriber subscriber_ = nullptr;
    void* subscribers_data_ = nullptr;
};

class Bytes {
 public:
    template <class T>
    Bytes& set(std::size_t offset, T value) {
        std::memcpy(bytes_ + offset, &value, sizeof value);
        return *this;
    }
    void record(std::uint32_t kind) {
        set(0, kind);
        Mock::one().record(kind, bytes_);
    }

 private:
    alignas(8) std::uint8_t bytes_[LARGEST] = {};
};

}  // namespace

API int cuptiGetVersion(std::uint32_t* out) { return *out = version(), SUCCESS; }
API int cuptiActivityEnable(std::uint32_t kind) { return Mock::one().enable(kind, true); }
API int cuptiActivityDisable(std::uint32_t kind) { return Mock::one().enable(kind, false); }
API int cuptiActivityEnableAllSyncRecords(std::uint8_t) { return SUCCESS; }
API int cuptiActivityFlushPeriod(std::uint32_t) { return SUCCESS; }
API int cuptiActivityFlushAll(std::uint32_t) { return Mock::one().flush(), SUCCESS; }
API int cuptiGetTimestamp(std::uint64_t* out) {
    *out = static_cast<std::uint64_t>(Mock::one().now());
    return SUCCESS;
}
API int cuptiActivityRegisterCallbacks(Requested requested, Completed completed) {
    return Mock::one().callbacks(requested, completed), SUCCESS;
}
API int cuptiActivityGetNumDroppedRecords(void*, std::uint32_t, std::size_t* out) {
    return *out = Mock::one().take_dropped(), SUCCESS;
}
API int cuptiActivityGetNextRecord(std::uint8_t* buffer, std::size_t valid, std::uint8_t** record) {
    std::uint32_t kind = 0;
    if (*record != nullptr) std::memcpy(&kind, *record, sizeof kind);
    std::uint8_t* next = *record == nullptr ? buffer : *record + size_of(kind);
    if (next >= buffer + valid) return AT_END;
    return *record = next, SUCCESS;
}

API int cuptiSubscribe(void** out, Subscriber subscriber, void* data) {
    *out = &Mock::one();
    return Mock::one().subscribe(subscriber, data);
}
API int cuptiUnsubscribe(void*) { return Mock::one().unsubscribe(), SUCCESS; }
API int cuptiEnableDomain(std::uint32_t, void*, std::uint32_t) { return SUCCESS; }
API int cuptiFinalize() { return Mock::one().finalize(), SUCCESS; }

std::atomic<std::uint32_t> launches{0}, graph{0};

// What a test does on the thread it calls from. A kernel ended just now and took so long.
API void mock_kernel(const char* name, std::uint32_t stream, std::int64_t duration_ns) {
    const std::int64_t end = Mock::one().now();
    Bytes()
        .set(16, end - Mock::one().ticks(duration_ns))
        .set(24, end)
        .set(48, stream)
        .set(92, ++launches)
        .set(104, name)
        .set(156, graph.load())
        .record(KERNEL);
    Mock::one().end_call();
}
API int mock_finalized() { return Mock::one().finalized(); }
// Kernels are from now on those of a graph; of none, if 0.
API void mock_graph_of_kernels(std::uint32_t id) { graph = id; }
// One that still runs, or that the GPU had no room to time.
API void mock_untimed_kernel(const char* name, bool begun) {
    const std::int64_t start = begun ? Mock::one().now() : 0;
    Bytes().set(16, start).set(48, 7).set(104, name).record(KERNEL);
}
API void mock_copy(std::uint8_t kind, std::uint8_t from, std::uint8_t to) {
    const std::int64_t end = Mock::one().now();
    Bytes()
        .set(4, kind)
        .set(5, from)
        .set(6, to)
        .set(16, end - 500)
        .set(24, end)
        .set(40, 8)
        .record(MEMCPY);
}
API void mock_set(std::uint16_t memory) {
    const std::int64_t end = Mock::one().now();
    Bytes().set(16, end - 300).set(24, end).set(40, 8).set(50, memory).record(MEMSET);
}
API void mock_graph(std::uint32_t id) {
    const std::int64_t end = Mock::one().now();
    Bytes().set(8, end - 9000).set(16, end).set(28, id).set(36, 9).record(GRAPH);
}
API void mock_synchronization(std::uint32_t type, std::int64_t duration_ns) {
    const std::int64_t end = Mock::one().now();
    Bytes().set(4, type).set(8, end - duration_ns).set(16, end).record(SYNCHRONIZATION);
}
API void mock_hold(bool wanted) { Mock::one().hold(wanted); }
API void mock_use_ticks() { Mock::one().use_ticks(); }
