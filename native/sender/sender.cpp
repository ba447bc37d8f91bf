#include "sender.hpp"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <system_error>

#include "text.hpp"

namespace stepscope {
namespace {

// As in collect/sender.py.
constexpr int LOOK_MS = 100;
constexpr std::int64_t RECONNECT_NS = SECOND_NS;
constexpr std::int64_t EXIT_NS = SECOND_NS;
constexpr std::int64_t COST_NS = 5 * SECOND_NS;
constexpr int EXIT_TURN_MS = 10;

// Each library has one sender; tests have a few.
constexpr std::size_t MOST_SENDERS = 8;
std::atomic<Sender*> senders[MOST_SENDERS];
std::once_flag handlers_set;

bool enlist(Sender* sender) {
    for (auto& place : senders) {
        Sender* empty = nullptr;
        if (place.compare_exchange_strong(empty, sender)) return true;
    }
    return false;
}

void pause_ms(int milliseconds) { ::poll(nullptr, 0, milliseconds); }

// Blocks signals on our thread: otherwise the process's signal handlers could run on it.
class SignalsBlocked {
 public:
    SignalsBlocked() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
    sigset_t before_;
};

}  // namespace

const char* table_of(std::size_t kind) {
    static constexpr const char* TABLES[KINDS] = {nullptr,  "steps",    "phases",  "comm_ops",
                                                  "pauses", "hardware", "kernels", "transfers"};
    return kind < KINDS ? TABLES[kind] : nullptr;
}

ClockPair clock_pair() {
    ClockPair best{};
    std::int64_t narrowest = INT64_MAX;
    for (int reading = 0; reading < 5; ++reading) {
        const std::int64_t before = now_ns();
        const std::int64_t wall = clock_ns(CLOCK_REALTIME);
        const std::int64_t after = now_ns();
        if (after - before >= narrowest) continue;
        narrowest = after - before;
        best = {wall, before + narrowest / 2};
    }
    return best;
}

Sender* Sender::start(const SenderOptions& options) noexcept {
    try {
        Identity who = from_environment();
        if (who.socket.empty() || is_anothers()) return nullptr;
        Sender* sender = new Sender(options, std::move(who));
        if (enlist(sender) && sender->launch()) return sender;
        // leaked: fork handlers may still access it through the list of senders
        sender->silent_ = sender->ended_ = true;
    } catch (...) {  // no memory or no thread: the training goes on without us
    }
    return nullptr;
}

Sender::Sender(const SenderOptions& options, Identity who)
    : options_(options),
      who_(std::move(who)),
      clocks_(clock_pair()),
      queue_(options.queue_records),
      connection_(who_.socket) {
    for (std::size_t kind = 0; kind < KINDS; ++kind) {
        const char* table = table_of(kind);
        if (table != nullptr) drop_names_[kind] = names_.number("dropped." + std::string(table));
    }
    cost_name_ = names_.number("stepscope_" + std::string(options.source) + "_cpu_ns");
    filled_ns_ = cost_ns_ = now_ns();
}

bool Sender::launch() {
    std::call_once(handlers_set, [] {
        pthread_atfork(nullptr, nullptr, in_child);
        std::atexit(at_exit);
    });
    wake_.poll();
    const SignalsBlocked blocked;
    try {
        thread_ = std::thread([this] { run(); });
    } catch (const std::system_error&) {
        return false;
    }
    pthread_setname_np(thread_.native_handle(), "stepscope-send");
    return true;
}

// Must not lock or free anything: other threads of the parent may have held any lock.
void Sender::in_child() noexcept {
    for (auto& place : senders) {
        Sender* sender = place.load();
        if (sender == nullptr) continue;
        sender->silent_ = true;
        sender->ended_ = true;
        sender->connection_.abandon();
    }
}

void Sender::at_exit() noexcept {
    for (auto& place : senders) {
        if (Sender* sender = place.load()) sender->stop();
    }
}

bool Sender::put(const Record& record) noexcept {
    if (is_silent()) return false;
    const bool is_in = queue_.put(record);
    if (!is_in) drops_.add(record.kind, 1);
    return is_in;
}

bool Sender::try_put(const Record& record) noexcept { return !is_silent() && queue_.put(record); }

bool Sender::try_put_all(const Record* records, std::size_t count) noexcept {
    return !is_silent() && queue_.put_all(records, count);
}

void Sender::lost(Kind kind, std::uint64_t rows) noexcept { drops_.add(kind, rows); }

std::int64_t Sender::name(std::string_view text) noexcept {
    if (is_silent()) return UNKNOWN;
    try {
        return names_.number(text);
    } catch (...) {
        return UNKNOWN;
    }
}

void Sender::count(std::string_view metric, std::int64_t value) noexcept {
    put({Kind::count, 0, UNKNOWN_ORDINAL, {name(metric), value, now_ns(), 0, 0, 0, 0}});
}

void Sender::wake() noexcept {
    if (!is_silent()) wake_.set();
}

void Sender::stop() noexcept {
    if (ended_) return;
    stopping_ = true;
    wake_.set();
    const std::int64_t until = now_ns() + EXIT_NS + EXIT_NS / 10;
    while (!ended_ && now_ns() < until) pause_ms(1);
    silent_ = true;
    if (ended_ && thread_.joinable()) thread_.join();
}

void Sender::run() noexcept {
    while (!stopping_) {
        try {
            wait();
            turn(false);
        } catch (...) {  // no memory for a moment: what was taken stays in the batch
            pause_ms(LOOK_MS);
        }
    }
    try {
        finish();
    } catch (...) {
    }
    connection_.close();
    ended_ = true;
}

// Waits until it is time for a look, the processor has sent something or has room again, or we are
// to stop.
void Sender::wait() {
    const short wanted = clogged_ ? POLLIN | POLLOUT : POLLIN;
    // poll ignores the number -1
    pollfd looked[2] = {{wake_.poll(), POLLIN, 0}, {connection_.descriptor(), wanted, 0}};
    if (::poll(looked, 2, LOOK_MS) <= 0) return;
    if (looked[0].revents != 0) wake_.heard();
    if ((looked[1].revents & ~POLLOUT) != 0) listen();
}

void Sender::listen() {
    std::string json;
    const Sent heard = connection_.hear(json);
    if (heard == Sent::broken) disconnect();
    if (number_in(json, "losses_stored", 0) == 1) recent_.confirmed();
    if (!json.empty() && options_.asked != nullptr) options_.asked(json);
}

void Sender::turn(bool is_last) {
    if (options_.before_send != nullptr) options_.before_send(is_last);
    clogged_ = false;
    if (!connection_.is_open()) {
        if (introduced_) disconnect();  // the script has closed our socket
        if (!connect()) return;
    }
    if (!introduced_ && !introduce()) return;
    while (send_batch()) {
    }
}

// Sends the last records, which may need more room than the socket has at once.
void Sender::finish() {
    const std::int64_t until = now_ns() + EXIT_NS;
    turn(true);
    while (connection_.is_open() && has_more() && now_ns() < until) {
        pause_ms(EXIT_TURN_MS);
        turn(true);
    }
}

bool Sender::has_more() const noexcept {
    return !introduced_ || batched_ > 0 || queue_.size() > 0 || drops_.total() > dropped_told_;
}

bool Sender::connect() {
    const std::int64_t now = now_ns();
    if (now < retry_ns_) return false;
    retry_ns_ = now + RECONNECT_NS;
    return connection_.open();
}

void Sender::disconnect() {
    connection_.close();
    recent_.disconnected();
    introduced_ = false;
    names_told_ = 0;
}

bool Sender::introduce() {
    const std::string hello = hello_of(who_, options_.source, clocks_) + recent_.at_risk() + "}";
    if (!said(connection_.send(Packet::hello, hello.data(), hello.size(), 0, 0))) return false;
    recent_.named();
    introduced_ = true;
    return true;
}

bool Sender::send_names() {
    while (names_told_ < names_.size()) {
        std::size_t next = names_told_;
        const std::string told = names_.told_from(next, MOST_PAYLOAD_BYTES);
        if (!said(connection_.send(Packet::names, told.data(), told.size(), 0, 0))) return false;
        names_told_ = next;
    }
    return true;
}

// Sends one packet of records, after their names; false if there are none, or it cannot be sent.
bool Sender::send_batch() {
    if (batched_ == 0) fill();
    if (!send_names() || batched_ == 0) return false;
    const std::uint64_t dropped = drops_.total();
    const std::size_t bytes = batched_ * sizeof(Record);
    const auto sent =
        connection_.send(Packet::records, batch_, bytes, batched_, dropped - dropped_told_);
    if (!said(sent)) return false;
    recent_.sent(batch_, batched_, now_ns());
    dropped_told_ = dropped;
    batched_ = 0;
    return true;
}

bool Sender::said(Sent sent) {
    clogged_ = sent == Sent::later;
    if (sent == Sent::broken) disconnect();
    return sent == Sent::yes;
}

void Sender::fill() {
    add_losses();
    add_cost();
    batched_ += queue_.take(batch_ + batched_, MOST_RECORDS - batched_);
}

void Sender::add_losses() {
    const std::int64_t since = filled_ns_;
    filled_ns_ = now_ns();
    for (std::size_t kind = 0; kind < KINDS; ++kind) {
        const std::uint64_t total = drops_.of(kind);
        if (total == drops_told_[kind] || table_of(kind) == nullptr) continue;
        add_count(drop_names_[kind], static_cast<std::int64_t>(total - drops_told_[kind]), since);
        drops_told_[kind] = total;
    }
}

void Sender::add_cost() {
    if (now_ns() - cost_ns_ < COST_NS) return;
    cost_ns_ = now_ns();
    add_count(cost_name_, clock_ns(CLOCK_THREAD_CPUTIME_ID), 0);
}

void Sender::add_count(std::int64_t metric, std::int64_t value, std::int64_t since_ns) {
    batch_[batched_++] = {
        Kind::count, 0, UNKNOWN_ORDINAL, {metric, value, now_ns(), since_ns, 0, 0, 0}};
}

}  // namespace stepscope
