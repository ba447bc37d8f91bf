#include "critical.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace stepscope {
namespace {

constexpr std::int64_t LAST = std::numeric_limits<std::int64_t>::max();

std::size_t place(std::int64_t stack) { return static_cast<std::size_t>(stack); }

void check(const Spans& events, std::size_t at) {
    if (events.end[at] < events.start[at] || (at > 0 && events.start[at] < events.start[at - 1]))
        throw std::invalid_argument("events are not in order of time");
}

}  // namespace

Innermost::Innermost(const Spans& calls) : keys_(calls.size) {
    segments_.reserve(2 * calls.size);  // memory is used only where it is written
    for (std::size_t at = 0; at < calls.size; ++at) {
        check(calls, at);
        end_before(calls.start[at]);
        run_until(calls.start[at]);
        now_ = calls.start[at];
        enter(calls.end[at], calls.of[at]);
    }
    end_before(LAST);
}

// A call that ended while a later one was running is the innermost no more.
void Innermost::end_before(std::int64_t time) {
    while (!running_.empty() && running_.back().end <= time) {
        run_until(running_.back().end);
        running_.pop_back();
    }
}

void Innermost::run_until(std::int64_t time) {
    if (running_.empty() || time <= now_) return;
    const std::int64_t stack = running_.back().stack;
    if (!segments_.empty() && segments_.back().stack == stack && segments_.back().end == now_)
        segments_.back().end = time;
    else
        segments_.push_back({now_, time, stack});
    now_ = time;
}

void Innermost::enter(std::int64_t end, std::int64_t of) {
    const std::int64_t stack = stack_of(running_.empty() ? NO_PARENT : running_.back().stack, of);
    stacks_[place(stack)].calls += 1;
    running_.push_back({end, stack});
}

std::int64_t Innermost::stack_of(std::int64_t parent, std::int64_t of) {
    const std::int64_t latest = parent == NO_PARENT ? -1 : links_[place(parent)].latest_child;
    for (const std::int64_t guess : {latest, latest < 0 ? latest : links_[place(latest)].next}) {
        if (guess < 0 || stacks_[place(guess)].of != of) continue;
        links_[place(parent)].latest_child = guess;
        return guess;
    }
    std::uint32_t code = 0;
    keys_.codes(0, &parent, &of, 1, &code);
    if (code == stacks_.size()) {
        stacks_.push_back({parent, of, 0});
        links_.push_back({-1, -1});
    }
    if (latest >= 0) links_[place(latest)].next = code;
    if (parent != NO_PARENT) links_[place(parent)].latest_child = code;
    return code;
}

Critical::Critical(std::size_t functions, std::int64_t from, std::int64_t until)
    : from_(from), until_(until), times_(functions), reach_(functions) {}

void Critical::add(const Spans& events) {
    std::fill(reach_.begin(), reach_.end(), from_);
    at_ = 0;
    for (std::size_t event = 0; event < events.size; ++event) {
        check(events, event);
        const auto of = static_cast<std::size_t>(events.of[event]);
        if (of >= times_.size()) throw std::invalid_argument("an event of an unknown function");
        const std::int64_t start = events.start[event];
        while (at_ < higher_.size() && higher_[at_].end <= start) ++at_;
        const std::int64_t begin = std::max(start, reach_[of]);
        const std::int64_t end = std::min(events.end[event], until_);
        if (end <= begin) continue;
        reach_[of] = end;
        times_[of] += end - begin - covered(begin, end);
    }
    join(events);
}

// The length of `higher_` between two times, neither before the current event's start.
std::int64_t Critical::covered(std::int64_t from, std::int64_t until) {
    if (at_ == higher_.size() || higher_[at_].start >= until) return 0;
    return covered_left_of(until, at_) - covered_left_of(from, at_);
}

std::int64_t Critical::covered_left_of(std::int64_t time, std::size_t at) const {
    const auto ends_by = [time](const Interval& one) { return one.end <= time; };
    std::size_t step = 1;  // galloping: most events span few intervals
    while (at + step < higher_.size() && ends_by(higher_[at + step])) step *= 2;
    const auto first = higher_.begin() + static_cast<std::ptrdiff_t>(at + step / 2);
    const auto last =
        higher_.begin() + static_cast<std::ptrdiff_t>(std::min(at + step + 1, higher_.size()));
    const auto found = std::partition_point(first, last, ends_by);
    if (found == higher_.end())
        return higher_.back().before + higher_.back().end - higher_.back().start;
    return found->before + std::max<std::int64_t>(time - found->start, 0);
}

void Critical::join(const Spans& events) {
    std::vector<Interval> joined;
    joined.reserve(higher_.size() + events.size / 2);
    const auto take = [&joined](std::int64_t start, std::int64_t end) {
        if (!joined.empty() && start <= joined.back().end)
            joined.back().end = std::max(joined.back().end, end);
        else if (end > start)
            joined.push_back({start, end, 0});
    };
    std::size_t old = 0;
    for (std::size_t event = 0; event < events.size; ++event) {
        for (; old < higher_.size() && higher_[old].start <= events.start[event]; ++old)
            take(higher_[old].start, higher_[old].end);
        take(events.start[event], events.end[event]);
    }
    for (; old < higher_.size(); ++old) take(higher_[old].start, higher_[old].end);
    std::int64_t before = 0;
    for (Interval& one : joined) {
        one.before = before;
        before += one.end - one.start;
    }
    higher_.swap(joined);
}

}  // namespace stepscope
