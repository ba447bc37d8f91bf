#include "recorder.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "atomics.hpp"

namespace stepscope::nccl {
namespace {

// With 8 x 8 x 8 ranks, a rank has a few dozen communicators.
constexpr std::uint32_t MOST_COMMUNICATORS = 1024;
// Operators of the last seconds, a thousand per step; 2 MB.
constexpr std::uint32_t MOST_OPERATORS = 1 << 14;
// Only the parts and steps in flight: 32 channels of 64 operators at both ends. NCCL has 8 steps in
// flight per channel and connection.
constexpr std::uint32_t MOST_PARTS = 1 << 13;
constexpr std::uint32_t MOST_STEPS = 1 << 14;
constexpr std::size_t MOST_CONNECTIONS = 4096;

// Parts begin within milliseconds of the launch; the processor waits as long for the steps' times.
constexpr std::int64_t RIPE_NS = 2 * SECOND_NS;
constexpr std::int64_t TRANSFERS_NS = SECOND_NS;
// In NCCL 2.31 kernel channels cost 4 to 13 % of small operators (issue 2355); sampling them a
// twentieth of the time keeps that below 1 %.
constexpr std::int64_t SAMPLE_EVERY_NS = 10 * SECOND_NS;
constexpr std::int64_t SAMPLE_NS = SECOND_NS / 2;

constexpr std::uint16_t NATIVE = 2;  // `COMM_NATIVE` of wire/records.py
constexpr int COLLECTIVE = -1;

// The index of the communicator's launch to which an operator belongs: `LAUNCHES` of
// wire/records.py. 0 if NCCL did not report it.
constexpr std::uint32_t LAUNCHES = 15;
constexpr int LAUNCH_SHIFT = 12;
// The handle of a group: it uses no slot, and no pool mistakes it for one of its own.
constexpr std::uint64_t OF_GROUP = 3, GROUP_BITS = 7;

bool is_group(const void* handle) {
    return (reinterpret_cast<std::uint64_t>(handle) & GROUP_BITS) == OF_GROUP;
}

std::uint16_t launch_flags(const void* group) {
    if (!is_group(group)) return 0;
    const std::uint64_t number = reinterpret_cast<std::uint64_t>(group) >> 3;
    return static_cast<std::uint16_t>((number & LAUNCHES) << LAUNCH_SHIFT);
}

// A processor closes the connection of a producer whose numbers do not fit any table.
constexpr std::int64_t MOST_BYTES = std::int64_t{1} << 50;
constexpr std::int64_t LONGEST_NS = 3600 * SECOND_NS;

// UNKNOWN if a factor is, or is implausibly large.
std::int64_t product(std::int64_t count, std::int64_t each) {
    std::int64_t bytes = 0;
    if (each < 0 || count < 0 || __builtin_mul_overflow(count, each, &bytes)) return UNKNOWN;
    return bytes <= MOST_BYTES ? bytes : UNKNOWN;
}

// How often an operator was called: NCCL's number, which replayed graphs do not have.
void count_call(std::atomic<std::int64_t>& calls, std::int64_t number) {
    std::int64_t before = calls.load(std::memory_order_relaxed);
    while (!calls.compare_exchange_weak(before, std::max(before + 1, number))) {
    }
}

std::int64_t ran_ns(const Op& op) { return static_cast<std::int64_t>(op.gpu_stop - op.gpu_start); }

// Whether it was sampled and its times are plausible.
bool has_run(const Op& op) {
    return op.gpu_start != 0 && ran_ns(op) >= 0 && ran_ns(op) <= LONGEST_NS;
}

// Communicators of one program have few names; the hash distinguishes those with the same name.
std::string communicator_name(std::uint64_t hash, const char* name, int ranks, int rank) {
    char head[64];
    std::snprintf(head, sizeof head, "nccl-%016llx %d/%d ", static_cast<unsigned long long>(hash),
                  rank, ranks);
    return std::string(head) + (name == nullptr ? "" : name);
}

}  // namespace

Recorder::Recorder(Sender& sender)
    : sender_(sender),
      pid_(getpid()),
      communicators_(MOST_COMMUNICATORS),
      ops_(MOST_OPERATORS),
      parts_(MOST_PARTS),
      steps_(MOST_STEPS),
      connections_(MOST_CONNECTIONS),
      clocks_(new DeviceClock[MOST_COMMUNICATORS]) {
    for (std::size_t at = 0; at < OPERATORS; ++at) operators_[at] = sender.name(OPERATOR_NAMES[at]);
}

void* Recorder::open(std::uint64_t hash, const char* name, int nodes, int ranks, int rank,
                     int* mask) {
    const std::int64_t told = sender_.name(communicator_name(hash, name, ranks, rank));
    if (nodes > 1) has_network_ = true;
    mask_ = mask;
    set_mask(now_ns());
    const std::uint32_t clock = opened_.fetch_add(1) % MOST_COMMUNICATORS;
    return communicators_.create([=](Communicator& one) {
        one.ranks = ranks;
        one.name = told;
        one.clock = clock;
        for (auto& calls : one.calls) calls.store(0, std::memory_order_relaxed);
        one.point_to_points.store(0, std::memory_order_relaxed);
        one.launches.store(0, std::memory_order_relaxed);
    });
}

void Recorder::close(void* communicator) noexcept {
    auto* place = communicators_.refer(communicator);
    if (place == nullptr) return;
    communicators_.release(place);
    communicators_.release(place);
}

void* Recorder::start(void* communicator, std::uint64_t type, const Description& event) noexcept {
    // an event of another process (PXN) contains pointers of that process
    const bool is_foreign = type == PROXY_OP && event.at<int>(24) != pid_;
    if (is_foreign) return start_part(nullptr, nullptr, 0);
    if (type == PROXY_STEP) return start_step(event);
    if (type == KERNEL_CH) return start_channel(event);
    auto* in = communicators_.refer(communicator);
    if (in == nullptr) return nullptr;
    void* handle = nullptr;
    if (type == GROUP) handle = start_group(in->thing);
    if (type == COLL) handle = start_collective(in->thing, event);
    if (type == P2P) handle = start_point_to_point(in->thing, event);
    if (type == PROXY_OP) handle = start_proxy(in->thing, event);
    communicators_.release(in);
    return handle;
}

void* Recorder::start_group(Communicator& in) noexcept {
    const std::uint64_t before = in.launches.fetch_add(1, std::memory_order_relaxed);
    return reinterpret_cast<void*>((before % LAUNCHES + 1) << 3 | OF_GROUP);
}

// NCCL numbers the calls of each operator separately. The sum numbers the calls of the
// communicator, in the same way on all its ranks, even if some calls were not seen (recording was
// off, or a graph was replayed).
void* Recorder::start_collective(Communicator& in, const Description& event) noexcept {
    const std::size_t code = operator_code(event.text(32));
    count_call(in.calls[code], static_cast<std::int64_t>(event.at<std::uint64_t>(24)) + 1);
    std::int64_t seq = -1;
    for (const auto& one : in.calls) seq += one.load(std::memory_order_relaxed);
    // all-gathers and broadcasts are reported as int8: the script's type is unknown
    const Datatype type = datatype_of(event.text(72));
    const int flags =
        detail_flags(event.text(88), event.text(96), type.code) | launch_flags(event.group(COLL));
    // NCCL counts the output of a reduce-scatter; we report the input of a rank
    const std::int64_t parts = code == REDUCE_SCATTER ? in.ranks : 1;
    const std::int64_t count = product(event.at<std::int64_t>(56), parts);
    return start_operator(in, code, COLLECTIVE, seq, count, type,
                          static_cast<std::uint16_t>(flags));
}

void* Recorder::start_point_to_point(Communicator& in, const Description& event) noexcept {
    const Datatype type = datatype_of(event.text(40));
    const int flags = detail_flags(nullptr, nullptr, type.code) | launch_flags(event.group(P2P));
    const std::int64_t seq = in.point_to_points.fetch_add(1, std::memory_order_relaxed);
    return start_operator(in, operator_code(event.text(24)), event.at<int>(56), seq,
                          event.at<std::int64_t>(48), type, static_cast<std::uint16_t>(flags));
}

void* Recorder::start_operator(const Communicator& in, std::size_t code, int peer, std::int64_t seq,
                               std::int64_t count, Datatype type, std::uint16_t flags) noexcept {
    const std::int64_t now = now_ns();
    void* handle = ops_.create([&](Op& op) {
        op.clock = in.clock;
        op.communicator = in.name;
        op.op_peer = operators_[code] << 32 | static_cast<std::uint32_t>(peer);
        op.seq = seq;
        op.bytes = product(count, type.bytes);
        op.enqueue_ns = now;
        op.flags = static_cast<std::uint16_t>(flags | NATIVE);
        op.is_enqueued = false;
        op.touched_ns = now;
        op.end_ns = UNKNOWN;
        op.gpu_start = op.gpu_stop = 0;
        op.ahead = DeviceClock::UNSEEN;
    });
    return handle == nullptr ? lost(Kind::comm) : handle;
}

void* Recorder::lost(Kind kind) noexcept {
    sender_.lost(kind, 1);
    return nullptr;
}

void Recorder::stop(void* handle) noexcept {
    if (handle == nullptr || is_group(handle)) return;
    if (stop_step(handle) || stop_operator(handle) || stop_part(handle)) return;
    stale_events_.fetch_add(1, std::memory_order_relaxed);
}

// It has been enqueued; the sender's thread releases it.
bool Recorder::stop_operator(void* handle) noexcept {
    auto* place = ops_.refer(handle);
    if (place == nullptr) return false;
    raise(place->thing.touched_ns, now_ns());
    place->thing.is_enqueued.store(true, std::memory_order_release);
    ops_.release(place);
    return true;
}

void Recorder::state(void* handle, int state, const void* args) noexcept {
    if (handle == nullptr || is_group(handle)) return;
    if (auto* step = steps_.refer(handle)) {
        std::int64_t unposted = UNKNOWN;
        const std::int64_t told = static_cast<std::int64_t>(argument(args));
        const std::int64_t bytes = told < 0 || told > MOST_BYTES ? 0 : told;
        if (state == SEND_WAIT && step->thing.bytes.compare_exchange_strong(unposted, bytes)) {
            step->thing.connection->posted.fetch_add(1, std::memory_order_release);
        }
        return steps_.release(step);
    }
    if (auto* part = parts_.refer(handle)) {
        if (state == KERNEL_CH_STOP) part->thing.gpu_stop = argument(args);
        return parts_.release(part);
    }
    if (auto* op = ops_.refer(handle)) return ops_.release(op);
    stale_events_.fetch_add(1, std::memory_order_relaxed);
}

void Recorder::turn(bool is_last) noexcept {
    const std::int64_t now = now_ns();
    const std::int64_t before = is_last ? now + 1 : now - RIPE_NS;
    const auto is_ripe = [before](const Op& op) {
        return op.is_enqueued.load(std::memory_order_acquire) && op.touched_ns < before;
    };
    // before any of them is reported, because each may correct the times of others
    const auto look_at_clock = [&](const Op& op) {
        if (is_ripe(op) && has_run(op)) clocks_[op.clock].correct(op.ahead, op.end_ns);
        return false;
    };
    ops_.sweep(look_at_clock, [](const Op&) {});
    ops_.sweep(is_ripe, [this](const Op& op) { tell(op); });
    if (is_last || now - transfers_ns_ >= TRANSFERS_NS) {
        connections_.tell(sender_, now);
        tell_troubles();
        transfers_ns_ = now;
    }
    if (!is_last) set_mask(now);
}

void Recorder::tell(const Op& op) noexcept {
    stepscope::Record record{
        Kind::comm,
        op.flags,
        UNKNOWN_ORDINAL,
        {op.communicator, op.op_peer, op.seq, op.bytes, op.enqueue_ns, op.end_ns, UNKNOWN}};
    set_times(op, record);
    sender_.put(record);
}

// The device's times, if the operator was sampled.
void Recorder::set_times(const Op& op, stepscope::Record& record) noexcept {
    if (!has_run(op)) return;
    const std::int64_t ahead = clocks_[op.clock].correct(op.ahead, op.end_ns);
    record.field[6] = static_cast<std::int64_t>(op.gpu_start.load()) + ahead;
    record.field[5] = record.field[6] + ran_ns(op);
}

void Recorder::tell_troubles() noexcept {
    const std::uint64_t strangers = stale_events_.load(std::memory_order_relaxed);
    if (strangers == stale_events_told_) return;
    stale_events_told_ = strangers;
    sender_.count("stepscope_nccl_strangers", static_cast<std::int64_t>(strangers));
}

void Recorder::watch(std::int64_t events) noexcept {
    asked_ = static_cast<int>(events) & (OURS | AS_USUAL);
    set_mask(now_ns());
}

// NCCL reads this before each event. If the mask was set explicitly, it is used without sampling.
void Recorder::set_mask(std::int64_t now_ns) noexcept {
    int* mask = mask_.load();
    if (mask == nullptr) return;
    const int asked = asked_.load();
    const int wanted = (asked & AS_USUAL) != 0 ? usual(now_ns) : asked;
    __atomic_store_n(mask, is_silent() ? 0 : wanted, __ATOMIC_RELAXED);
}

int Recorder::usual(std::int64_t now_ns) const noexcept {
    const int network = has_network_.load() ? static_cast<int>(PROXY_OP | PROXY_STEP) : 0;
    const bool is_sampled = now_ns % SAMPLE_EVERY_NS < SAMPLE_NS;
    return COLL | P2P | network | (is_sampled ? static_cast<int>(KERNEL_CH) : 0);
}

}  // namespace stepscope::nccl
