#include "parser.hpp"

#include <poll.h>

#include <string>

namespace stepscope::cupti {
namespace {

constexpr int TURN_MS = 1;
constexpr std::int64_t NO_LAUNCH = 0;  // as in wire/records.py: for records that are not kernels
// CUpti_ActivitySynchronizationType: all others make the host wait.
constexpr std::uint32_t STREAM_WAIT_EVENT = 2;
constexpr std::size_t SYNCHRONIZATION_TYPE = 4;

bool has_times(std::uint64_t start, std::uint64_t end) { return start != 0 && end >= start; }

}  // namespace

void Parser::read(std::uint8_t* buffer, std::size_t valid, const Timeline& timeline) {
    latest_ns_ = now_ns() + SLACK_NS;
    names_.next_buffer();
    std::uint8_t* record = nullptr;
    while (library_.next_record(buffer, valid, &record) == SUCCESS) take(Record(record), timeline);
    put();
}

void Parser::take(Record record, const Timeline& timeline) {
    if (record.kind() != GRAPH_TRACE && record.kind() != SYNCHRONIZATION) ++recorded_;
    switch (record.kind()) {
        case CONCURRENT_KERNEL: kernel(record, timeline); break;
        case MEMCPY: tell(copy(record), NO_LAUNCH, record, OF_COPY, timeline); break;
        case MEMSET: tell(set(record), NO_LAUNCH, record, OF_COPY, timeline); break;
        case GRAPH_TRACE: graph(record, timeline); break;
        case SYNCHRONIZATION: wait(record, timeline); break;
        default: break;
    }
}

void Parser::kernel(Record record, const Timeline& timeline) {
    if (record.field<std::uint32_t>(KERNEL_GRAPH) != 0) {
        ++graphs_seen_;
        if (graphs_ == Graphs::off) return;
    }
    tell(names_.number(record.field<const char*>(KERNEL_NAME)),
         record.field<std::uint32_t>(KERNEL_CORRELATION), record, OF_KERNEL, timeline);
}

void Parser::graph(Record record, const Timeline& timeline) {
    ++graphs_seen_;
    if (graphs_ != Graphs::graph) return;
    const auto id = record.field<std::uint32_t>(GRAPH_ID);
    tell(sender_.name("CUDA graph " + std::to_string(id)), NO_LAUNCH, record, OF_GRAPH, timeline);
}

// A record has no times if the GPU had no room for them. Its end is before its start if it was
// still running when we stopped.
void Parser::tell(std::int64_t name, std::int64_t launch, Record record, Layout layout,
                  const Timeline& timeline) {
    const auto start = record.field<std::uint64_t>(layout.start);
    const auto end = record.field<std::uint64_t>(layout.end);
    const std::int64_t start_ns = timeline.to_mono(static_cast<std::int64_t>(start));
    if (!has_times(start, end) || start_ns < earliest_ns_ || start_ns > latest_ns_) {
        sender_.lost(stepscope::Kind::kernel, 1);
        return;
    }
    batch_[batched_++] = {
        stepscope::Kind::kernel,
        0,
        UNKNOWN_ORDINAL,
        {name, record.field<std::uint32_t>(layout.stream), start_ns,
         timeline.scaled(static_cast<std::int64_t>(end - start)), UNKNOWN, launch, 0}};
    if (batched_ == BATCH) put();
}

// Waits a little for room; records that find none are lost.
void Parser::put() {
    while (!sender_.try_put_all(batch_, batched_)) {
        if (patience_ns_ <= 0 || sender_.is_silent()) {
            sender_.lost(stepscope::Kind::kernel, batched_);
            break;
        }
        const std::int64_t since = now_ns();
        sender_.wake();
        ::poll(nullptr, 0, TURN_MS);
        patience_ns_ -= now_ns() - since;
    }
    batched_ = 0;
}

std::int64_t Parser::copy(Record record) {
    const auto bits = [&](std::size_t field) { return record.field<std::uint8_t>(field) & 15; };
    std::int64_t& number = copies_[bits(COPY_KIND) << 8 | bits(COPY_FROM) << 4 | bits(COPY_TO)];
    if (number == UNKNOWN) number = sender_.name(name_of_copy(record));
    return number;
}

std::int64_t Parser::set(Record record) {
    std::int64_t& number = sets_[record.field<std::uint16_t>(SET_MEMORY) & 15];
    if (number == UNKNOWN) number = sender_.name(name_of_set(record));
    return number;
}

void Parser::wait(Record record, const Timeline& timeline) {
    const auto start = record.field<std::uint64_t>(OF_SYNCHRONIZATION.start);
    const auto end = record.field<std::uint64_t>(OF_SYNCHRONIZATION.end);
    if (record.field<std::uint32_t>(SYNCHRONIZATION_TYPE) == STREAM_WAIT_EVENT) return;
    if (has_times(start, end))
        waited_ns_ += timeline.scaled(static_cast<std::int64_t>(end - start));
}

std::int64_t Parser::take_waited_ns() {
    const std::int64_t waited = waited_ns_;
    waited_ns_ = 0;
    return waited;
}

std::int64_t Parser::take_recorded() {
    const std::int64_t recorded = recorded_;
    recorded_ = 0;
    return recorded;
}

}  // namespace stepscope::cupti
