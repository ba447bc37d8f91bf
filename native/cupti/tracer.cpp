#include "tracer.hpp"

#include <poll.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <utility>

namespace stepscope::cupti {
namespace {

constexpr int LOOK_MS = 100;
constexpr std::int64_t FLUSH_NS = SECOND_NS;
constexpr std::int64_t COST_NS = 5 * SECOND_NS;
// A device that is further behind its host loses the records of what it has not finished. Where it
// is that far behind, the host does not matter, and may as well be slower for as long.
constexpr std::int64_t LEAVE_NS = 2 * SECOND_NS;
constexpr std::uint32_t FLUSH_PERIOD_MS = 1000;
// In each turn, records wait this long for room; meanwhile the buffers hold the next ones.
constexpr std::int64_t PATIENCE_NS = SECOND_NS / 10;
constexpr std::int64_t EXIT_PATIENCE_NS = SECOND_NS / 2;
// The holder of the lock is in CUPTI, which may hang: an exit waits no longer than this.
constexpr int LOCK_TURNS = 1000, LOCK_TURN_MS = 1;
// By default CUPTI's clock is the wall clock; another profiler's clock starts elsewhere.
constexpr std::int64_t SAME_CLOCK_NS = SECOND_NS;
// A reading is off by 50 ns: over 50 ms the length of a tick is off by 1 in 10^6.
constexpr int SECOND_PAIR_MS = 50;

// Takes the lock, unless it is held for too long.
std::unique_lock<std::mutex> soon(std::mutex& mutex) {
    std::unique_lock<std::mutex> hold(mutex, std::try_to_lock);
    for (int turn = 0; !hold && turn < LOCK_TURNS; ++turn) {
        ::poll(nullptr, 0, LOCK_TURN_MS);
        hold.try_lock();
    }
    return hold;
}

}  // namespace

// Never destroyed. `start` allocates everything else, and reports failures.
Tracer& Tracer::one() {
    static Tracer& tracer = *new Tracer;
    return tracer;
}

void Tracer::requested(std::uint8_t** buffer, std::size_t* size, std::size_t* most) {
    Tracer& self = one();
    self.buffers_.requested(buffer, size, most, self.library_.version >= DECLINES_SAFELY);
}

void Tracer::completed(void*, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
    one().buffers_.completed(buffer, valid);
}

const char* Tracer::start(Graphs graphs, double share, bool detaches) {
    const Lock hold(mutex_);
    if (state_ != State::none) return nullptr;
    if (!find(library_)) return "there is no libcupti.so.13 or libcupti.so.12";
    graphs_ = graphs;
    detaches_ = detaches && Detacher::can(library_);
    detacher_.use(library_);
    budget_ =
        std::make_unique<Budget>(share, detaches_ ? Budget::ON_HOST_NS : Budget::ON_DEVICE_NS);
    if (!buffers_.allocate()) return "there is no memory";
    enabled_ = !paused_ && enable();
    const bool refused = !paused_ && !enabled_;
    if (refused || !prepare()) {
        disable();
        enabled_ = false;
        buffers_.release();
        return refused ? "CUPTI refuses: is there a driver, and no other profiler?"
                       : "no thread can be started, or there is no memory";
    }
    state_ = State::tracing;
    return launch() ? nullptr : "no thread can be started";
}

bool Tracer::prepare() {
    SenderOptions options;
    options.source = "cupti";
    sender_ = Sender::start(options);
    if (sender_ == nullptr) return false;
    parser_ = std::make_unique<Parser>(library_, *sender_, graphs_);
    parser_->begin(now_ns());
    timeline_.restart(true);
    timeline_.add(pair());
    return true;
}

bool Tracer::enable() {
    if (library_.register_callbacks(requested, completed) != SUCCESS) return false;
    if (library_.enable(CONCURRENT_KERNEL) != SUCCESS) return false;
    if (!enable_graphs()) return false;
    library_.enable(MEMCPY);
    library_.enable(MEMSET);
    note_recording(true);
    // before CUDA 12.8 every recorded event would get one
    if (library_.all_sync_records != nullptr && library_.all_sync_records(0) == SUCCESS)
        library_.enable(SYNCHRONIZATION);
    if (library_.flush_period != nullptr) library_.flush_period(FLUSH_PERIOD_MS);
    return true;
}

// Whole graphs are recorded only from CUDA's beginning on. If it is enabled later, CUPTI 13.0
// crashes the process when a graph that was there before is launched (seen on an H200). Without it,
// kernels of graphs are recorded one by one.
bool Tracer::enable_graphs() {
    const bool is_first = state_ == State::none;
    return graphs_ == Graphs::node || !is_first || library_.enable(GRAPH_TRACE) == SUCCESS;
}

void Tracer::disable() {
    for (const Kind kind : {CONCURRENT_KERNEL, GRAPH_TRACE, MEMCPY, MEMSET, SYNCHRONIZATION})
        library_.disable(kind);
    note_recording(false);
}

// Graphs and waits stay enabled: there are few of them, and CUPTI has to see every graph.
void Tracer::record_kernels(bool wanted) {
    for (const Kind kind : {CONCURRENT_KERNEL, MEMCPY, MEMSET})
        wanted ? library_.enable(kind) : library_.disable(kind);
    note_recording(wanted);
}

void Tracer::note_recording(bool is_on) {
    const std::int64_t now = now_ns();
    if (recording_) recorded_ns_ += now - recording_since_ns_;
    recording_ = is_on;
    recording_since_ns_ = now;
}

bool Tracer::launch() {
    pthread_atfork(nullptr, nullptr, in_child);
    std::atexit([] { one().stop(); });
    sigset_t all, before;
    sigfillset(&all);
    // the process's signal handlers must not run on our thread
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        std::thread worker([this] { run(); });
        pthread_setname_np(worker.native_handle(), "stepscope-cupti");
        worker.detach();
    } catch (...) {
        silent_ = true;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return !silent_;
}

// Must not lock or free anything: other threads of the parent may have held any lock.
void Tracer::in_child() noexcept { one().silent_ = true; }

void Tracer::run() noexcept {
    while (!silent_) {
        ::poll(nullptr, 0, pause_ms());
        try {
            const Lock hold(mutex_);
            if (state_ == State::ended) return;
            keep_within_budget();
            turn();
        } catch (...) {
            tell_fault();
        }
    }
}

// Until the next look, or until kernels are to be recorded or no longer. Read without the lock:
// only this thread changes the budget.
int Tracer::pause_ms() const {
    const std::int64_t change_ns = budget_->until_change(clock_ns(CLOCK_REALTIME));
    return static_cast<int>(std::min<std::int64_t>(LOOK_MS, change_ns / 1'000'000 + 1));
}

void Tracer::keep_within_budget() {
    if (paused_ || !(enabled_ || detacher_.is_away())) return;
    const bool wanted = budget_->is_on(clock_ns(CLOCK_REALTIME));
    if (detaches_) return attach_or_detach(wanted);
    if (wanted != recording_) record_kernels(wanted);
}

void Tracer::attach_or_detach(bool wanted) {
    if (detacher_.is_away()) {
        if (wanted) attach();
        return;
    }
    if (wanted != recording_) {
        record_kernels(wanted);
        unwanted_since_ns_ = now_ns();
    }
    if (!wanted && is_complete()) let_go();
}

// Whether the device has finished what was to be recorded, or is too far behind its host.
bool Tracer::is_complete() const {
    const std::int64_t waited_ns = now_ns() - unwanted_since_ns_;
    library_.flush_all(FLUSH_COMPLETED);
    return waited_ns >= LOOK_MS * 1'000'000 && (!buffers_.any_out() || waited_ns >= LEAVE_NS);
}

void Tracer::let_go() {
    watch_clock();
    count_cost();
    disable();
    library_.flush_all(FLUSH_FORCED);
    drain(PATIENCE_NS);
    count_dropped();
    enabled_ = false;
    if (detacher_.request()) return;
    detaches_ = false;  // another tool subscribes to calls
    enabled_ = enable();
}

void Tracer::attach() {
    detacher_.take_back();
    enabled_ = enable();
    if (enabled_) watch_clock();
}

void Tracer::turn() {
    if (now_ns() - looked_ns_ >= FLUSH_NS) look();
    drain(PATIENCE_NS);
}

void Tracer::look() {
    looked_ns_ = now_ns();
    if (!paused_ && !enabled_ && !detacher_.is_away()) take_over();
    if (!enabled_) return;
    watch_clock();
    library_.flush_all(FLUSH_COMPLETED);
    count_dropped();
    count_cost();
    if (looked_ns_ - cost_told_ns_ >= COST_NS) {
        cost_told_ns_ = looked_ns_;
        sender_->count("stepscope_cupti_worker_cpu_ns", clock_ns(CLOCK_THREAD_CPUTIME_ID));
    }
    const std::int64_t waited = parser_->take_waited_ns();
    if (waited > 0) sender_->count("device_wait_ns", waited);
    if (parser_->graphs_seen() > graphs_told_) {
        graphs_told_ = parser_->graphs_seen();
        sender_->count("stepscope_cupti_graphs", graphs_told_);
    }
}

// Decides how much of the time is recorded, by what came since the last time.
void Tracer::count_cost() {
    note_recording(recording_);
    const std::int64_t recorded_ns = std::exchange(recorded_ns_, 0);
    budget_->took(clock_ns(CLOCK_REALTIME), parser_->take_recorded(), recorded_ns);
    if (budget_->parts() == parts_told_) return;
    drain(PATIENCE_NS);  // what was recorded before is told of before
    parts_told_ = budget_->parts();
    sender_->count("stepscope_cupti_parts", parts_told_);
}

void Tracer::drain(std::int64_t patience_ns) {
    parser_->be_patient(patience_ns);
    buffers_.drain([this](std::uint8_t* buffer, std::size_t valid) {
        parser_->read(buffer, valid, timeline_);
    });
}

void Tracer::count_dropped() {
    std::size_t dropped = 0;
    if (library_.dropped_records(nullptr, 0, &dropped) != SUCCESS) dropped = 0;
    const std::uint64_t spilled = buffers_.spilled();
    sender_->lost(stepscope::Kind::kernel, dropped + (spilled - spilled_told_));
    spilled_told_ = spilled;
    const std::uint64_t declined = buffers_.declined();
    if (declined == declined_told_) return;
    declined_told_ = declined;
    sender_->count("stepscope_cupti_declined", static_cast<std::int64_t>(declined));
}

void Tracer::watch_clock() {
    if (const bool foreign = is_foreign(); foreign != foreign_) {
        foreign_ = foreign;
        timeline_.restart(!foreign);
        timeline_.add(pair());
        ::poll(nullptr, 0, SECOND_PAIR_MS);
    }
    timeline_.add(pair());
}

bool Tracer::is_foreign() const {
    std::uint64_t theirs = 0;
    if (library_.timestamp == nullptr || library_.timestamp(&theirs) != SUCCESS) return false;
    const std::int64_t apart = static_cast<std::int64_t>(theirs) - clock_ns(CLOCK_REALTIME);
    return apart > SAME_CLOCK_NS || apart < -SAME_CLOCK_NS;
}

Pair Tracer::pair() const {
    if (!foreign_) {
        const ClockPair both = clock_pair();
        return {both.wall_ns, both.mono_ns};
    }
    std::uint64_t theirs = 0;
    const std::int64_t before = now_ns();
    library_.timestamp(&theirs);
    return {static_cast<std::int64_t>(theirs), before + (now_ns() - before) / 2};
}

void Tracer::pause() noexcept {
    quietly([this] { leave(); });
}

void Tracer::resume() noexcept {
    quietly([this] {
        paused_ = false;
        if (state_ == State::tracing && !enabled_) take_over();
    });
}

// For callers that must not be blocked. A forked child never takes the lock, because another thread
// of the parent may have held it.
template <class Work>
void Tracer::quietly(Work work) noexcept {
    if (silent_) return;
    try {
        const Lock hold(mutex_);
        work();
    } catch (...) {
        tell_fault();
    }
}

// Makes CUPTI return all buffers now; otherwise they would be passed to the other profiler's
// callbacks.
void Tracer::leave() {
    paused_ = true;
    detacher_.take_back();
    if (!enabled_) return;
    enabled_ = false;
    disable();
    library_.flush_all(FLUSH_COMPLETED);
    drain(PATIENCE_NS);
    if (buffers_.any_out()) library_.flush_all(FLUSH_FORCED);
    drain(PATIENCE_NS);
    count_dropped();
    tell_pause();
}

// If CUPTI refuses, the worker tries again every second.
void Tracer::take_over() {
    enabled_ = enable();
    if (!enabled_) {
        disable();
        return;
    }
    watch_clock();
    tell_pause();
}

void Tracer::tell_pause() { sender_->count("stepscope_cupti_paused", enabled_ ? 0 : 1); }

void Tracer::tell_fault() noexcept {
    if (sender_ != nullptr) sender_->count("stepscope_cupti_faults", 1);
}

void Tracer::stop() noexcept {
    if (silent_) return;
    try {
        const Lock hold = soon(mutex_);
        if (hold && state_ == State::tracing) finish();
    } catch (...) {
        tell_fault();
    }
    sender_->stop();
}

void Tracer::finish() {
    state_ = State::ended;
    if (detacher_.is_away()) detacher_.take_back();
    if (enabled_) {
        enabled_ = false;
        disable();
        library_.flush_all(FLUSH_FORCED);
        count_dropped();
    }
    drain(EXIT_PATIENCE_NS);
}

}  // namespace stepscope::cupti
