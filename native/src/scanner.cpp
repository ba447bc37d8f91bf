#include "scanner.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "number.hpp"
#include "structure.hpp"

namespace stepscope {
namespace {

using json::Outcome;

enum Place {
    start_ns,
    duration_ns,
    name,
    thread,
    correlation,
    stream,
    call,
    external,
    sequence,
    id,
    parent
};

constexpr int MICROSECONDS = 3, NANOSECONDS = 0;  // powers of ten of a nanosecond
constexpr double NANOSECONDS_FROM = 1e17;         // as microseconds this is the year 5138
constexpr std::size_t TELLING_EVENTS = 64;        // enough, as some of them may be damaged
constexpr std::size_t TELLING_BYTES = 1 << 20;    // the size in which to look for them

const char* behind_separators(const char* at, const char* end) {
    while (at != end && (*at == ',' || *at == ' ' || *at == '\n' || *at == '\r' || *at == '\t'))
        ++at;
    return at;
}

bool begins(std::string_view text, std::string_view prefix) {
    return text.substr(0, prefix.size()) == prefix;
}

// A missing time is unknown; a missing duration is zero.
std::int64_t time_of(const json::Token& token, int power, std::int64_t missing) {
    Decimal number;
    return read_decimal(token, number) ? nanoseconds(number, power) : missing;
}

}  // namespace

std::vector<std::uint32_t> in_order(const Table& table) {
    struct Row {
        std::int64_t start, duration;
        std::uint32_t at;
    };
    std::vector<Row> rows;
    rows.reserve(table[start_ns].size());
    for (std::uint32_t at = 0; at < table[start_ns].size(); ++at)
        rows.push_back({table[start_ns][at], table[duration_ns][at], at});
    std::sort(rows.begin(), rows.end(), [](const Row& one, const Row& other) {
        return std::tie(one.start, other.duration, one.at) <
               std::tie(other.start, one.duration, other.at);
    });
    std::vector<std::uint32_t> order;
    order.reserve(rows.size());
    for (const Row& row : rows) order.push_back(row.at);
    return order;
}

Scanner::Scanner(std::vector<std::pair<std::string, Kind>> categories,
                 std::vector<std::string> calls)
    : categories_(std::move(categories)), call_prefixes_(std::move(calls)) {}

bool Scanner::feed(std::string_view data) {
    held_.append(data);
    // an event longer than a chunk is not scanned again for each chunk of it
    if (wants_more() && held_.size() >= enough_) scan(false);
    return wants_more();
}

void Scanner::finish() {
    if (wants_more()) scan(true);
}

bool Scanner::full() const {
    return kept_ >= MOST_EVENTS || calls_.texts().size() >= MOST_CALLS ||
           names_.size_bytes() + threads_.size_bytes() >= MOST_NAME_BYTES ||
           calls_.size_bytes() >= MOST_CALL_BYTES;
}

void Scanner::scan(bool last) {
    std::size_t used = 0;
    if (power_ >= 0 || choose_unit(last))
        used = each_event([this](const Event& event, Kind kind) { keep(event, kind); });
    held_.erase(0, used);
    enough_ = used ? 0 : 2 * held_.size();
    oversized_ = !closed_ && held_.size() > LONGEST_EVENT_BYTES;
}

// Some exporters write nanoseconds. This is detected by the size of the usual time, once there are
// enough.
bool Scanner::choose_unit(bool last) {
    std::vector<double> times;
    const std::size_t unreadable = unreadable_;
    each_event([&times](const Event& event, Kind) {
        Decimal time;
        if (read_decimal(event[Event::ts], time)) times.push_back(std::abs(time.rough()));
    });
    const bool all = last || closed_ || held_.size() > TELLING_BYTES;
    unreadable_ = unreadable;
    closed_ = false;
    if (times.size() < TELLING_EVENTS && !all) return false;
    double usual = 0;
    if (!times.empty()) {
        const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
        std::nth_element(times.begin(), middle, times.end());
        usual = *middle;
    }
    power_ = usual > NANOSECONDS_FROM ? NANOSECONDS : MICROSECONDS;
    return true;
}

// Visits the complete events in the buffer that are of use; returns how many bytes are done with.
template <class Visit>
std::size_t Scanner::each_event(Visit&& visit) {
    const char *begin = held_.data(), *end = begin + held_.size(), *done = begin;
    for (;;) {
        const char* at = behind_separators(done, end);
        if (at == end) break;
        closed_ = *at == ']' || *at == '}';
        if (closed_) return static_cast<std::size_t>(at - begin);
        json::Cursor in({at, static_cast<std::size_t>(end - at)});
        const Outcome outcome = event_.read(in);
        if (outcome == Outcome::cut) break;
        if (outcome == Outcome::whole) {
            done = in.at();
            const Kind* kind = kind_of(event_);
            if (kind != nullptr) visit(event_, *kind);
            continue;
        }
        const Structure found = structure({at, static_cast<std::size_t>(end - at)});
        if (found.found == Structure::nothing) break;
        closed_ = found.found == Structure::array;
        if (closed_) return static_cast<std::size_t>(found.end - begin);
        ++unreadable_;
        done = found.end;
    }
    return static_cast<std::size_t>(done - begin);
}

// The table of an event with a duration; null for all events that are left out.
const Kind* Scanner::kind_of(const Event& event) const {
    const std::string_view category = event.text(Event::cat);
    if (event.text(Event::ph) != "X") return nullptr;
    for (const auto& [known, kind] : categories_)
        if (known == category) return &kind;
    return nullptr;
}

void Scanner::keep(const Event& event, Kind kind) {
    const std::int64_t start = time_of(event[Event::ts], power_, NULL_INT);
    const std::int64_t duration = time_of(event[Event::dur], power_, 0);
    if (start == NULL_INT || duration < 0) {
        ++impossible_;
        return;
    }
    ++kept_;
    const auto times = [&](Table& to) {
        to[start_ns].append(start);
        to[duration_ns].append(duration);
    };
    times(table(kind));
    keep_arguments(event, kind, table(kind));
    if (kind != Kind::cpu && kind != Kind::mark) return;
    const std::string_view called = event.text(Event::name);
    const auto prefixes = [&](const std::string& prefix) { return begins(called, prefix); };
    if (!std::any_of(call_prefixes_.begin(), call_prefixes_.end(), prefixes)) return;
    times(table(Kind::calls));
    keep_arguments(event, Kind::calls, table(Kind::calls));
}

void Scanner::keep_arguments(const Event& event, Kind kind, Table& table) {
    const auto number = [&](Event::Argument at) { return whole_number(event[at]); };
    table[name].append(names_.code(event.text(Event::name)));
    if (kind != Kind::runtime && kind != Kind::device) table[thread].append(thread_of(event));
    if (kind == Kind::runtime || kind == Kind::device)
        table[correlation].append(number(Event::correlation));
    if (kind == Kind::device) {
        const std::int64_t said = number(Event::stream);
        table[stream].append(said == NULL_INT ? whole_number(event[Event::tid]) : said);
        const std::int64_t device = whole_number(event[Event::pid]);
        if (first_device_ < 0 && device != NULL_INT) first_device_ = device;
    }
    if (kind == Kind::device || kind == Kind::calls) keep_call(event, table);
    if (kind == Kind::python) {
        table[id].append(number(Event::python_id));
        table[parent].append(number(Event::python_parent));
    }
}

void Scanner::keep_call(const Event& event, Table& table) {
    table[call].append(call_of(event));
    table[external].append(whole_number(event[Event::external]));
    table[sequence].append(whole_number(event[Event::sequence]));
}

std::int64_t Scanner::thread_of(const Event& event) {
    const auto said = [&event](Event::Field field) {
        return event[field].kind == json::missing ? std::string_view("null") : event[field].raw;
    };
    const std::int64_t code = threads_.code(said(Event::tid));
    // on Linux, a process's first thread has the number of the process
    if (said(Event::tid) == said(Event::pid)) first_thread_ = std::min(first_thread_, code);
    return code;
}

std::int64_t Scanner::call_of(const Event& event) {
    event.call(call_);
    return call_.empty() ? -1 : calls_.code(call_);
}

}  // namespace stepscope
