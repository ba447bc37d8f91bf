#include "losses.hpp"

#include "clock.hpp"
#include "text.hpp"

namespace stepscope {
namespace {

// As in collect/sender.py: younger rows may not have been stored.
constexpr std::int64_t AT_RISK_NS = 15 * SECOND_NS;
// Packets closer together than this are remembered as one, which keeps the list short.
constexpr std::int64_t TOGETHER_NS = SECOND_NS / 10;

std::string rows_json(const Counts& rows) {
    std::string out = "{";
    for (std::size_t kind = 0; kind < KINDS; ++kind) {
        if (rows[kind] == 0 || table_of(kind) == nullptr) continue;
        if (out.size() > 1) out += ',';
        append_string(out, table_of(kind));
        out += ':' + std::to_string(rows[kind]);
    }
    return out + "}";
}

}  // namespace

void Drops::add(Kind kind, std::uint64_t rows) noexcept {
    dropped_[static_cast<std::size_t>(kind) % KINDS].fetch_add(rows, std::memory_order_relaxed);
}

std::uint64_t Drops::of(std::size_t kind) const noexcept {
    return dropped_[kind].load(std::memory_order_relaxed);
}

std::uint64_t Drops::total() const noexcept {
    std::uint64_t total = 0;
    for (const auto& one : dropped_) total += one.load(std::memory_order_relaxed);
    return total;
}

void Recent::sent(const Record* records, std::size_t count, std::int64_t now_ns) {
    if (sent_.empty() || now_ns - sent_.back().start_ns > TOGETHER_NS) {
        sent_.push_back({now_ns, now_ns, {}});
    }
    sent_.back().end_ns = now_ns;
    for (std::size_t at = 0; at < count; ++at) {
        ++sent_.back().rows[static_cast<std::size_t>(records[at].kind) % KINDS];
    }
    while (sent_.front().end_ns < now_ns - AT_RISK_NS) sent_.erase(sent_.begin());
}

void Recent::named() {
    named_.clear();
    if (!sent_.empty()) named_.push_back({sent_.front().start_ns, sent_.back().end_ns, rows()});
    sent_.clear();
}

void Recent::disconnected() {
    sent_.insert(sent_.begin(), named_.begin(), named_.end());
    named_.clear();
}

Counts Recent::rows() const {
    Counts sum{};
    for (const Sent& one : sent_) {
        for (std::size_t kind = 0; kind < KINDS; ++kind) sum[kind] += one.rows[kind];
    }
    return sum;
}

std::string Recent::at_risk() const {
    if (sent_.empty()) return "";
    return ",\"at_risk\":{\"start_ns\":" + std::to_string(sent_.front().start_ns) +
           ",\"end_ns\":" + std::to_string(sent_.back().end_ns) + ",\"rows\":" + rows_json(rows()) +
           "}";
}

}  // namespace stepscope
