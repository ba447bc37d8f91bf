// What is on a rank's critical path: EROICA (Guan et al., 2026), section 4.2, equations 2 and 3.
//
// `Innermost` turns the nested calls of one thread into the time that each call stack itself takes.
// `Critical` gives every function the time in which it runs and nothing of a higher class does:
//
//     |U_f| − |U_f ∩ U_higher|      U: union of intervals
//
// Both take events in order of their start and need no sorting: time linear in events, but for a
// logarithmic search where an event spans many intervals of higher classes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "keys.hpp"

namespace stepscope {

// Events in order of their start; of events that start together, the longest first.
struct Spans {
    const std::int64_t* start;
    const std::int64_t* end;
    const std::int32_t* of;  // the function of each
    std::size_t size;
};

// The innermost call at any time: of the calls that run, the one that started last.
class Innermost {
 public:
    static constexpr std::int64_t NO_PARENT = -1;
    struct Segment {
        std::int64_t start, end, stack;
    };
    struct Stack {
        std::int64_t parent, of, calls;
    };

    // Throws std::invalid_argument if events are not in order, or negative.
    explicit Innermost(const Spans& calls);

    // Disjoint, in order of time. Those of one stack that touch are one.
    const std::vector<Segment>& segments() const { return segments_; }
    // Distinct call stacks; a parent comes before its children.
    const std::vector<Stack>& stacks() const { return stacks_; }

 private:
    struct Running {
        std::int64_t end, stack;
    };
    // Programs call the same functions in the same order, so most lookups are guesses.
    struct Link {
        std::int64_t latest_child;  // entered last; -1: none
        std::int64_t next;          // the sibling that was entered after it
    };
    void end_before(std::int64_t time);
    void run_until(std::int64_t time);
    void enter(std::int64_t end, std::int64_t of);
    std::int64_t stack_of(std::int64_t parent, std::int64_t of);

    Keys keys_;
    std::int64_t now_ = 0;
    std::vector<Running> running_;
    std::vector<Segment> segments_;
    std::vector<Stack> stacks_;
    std::vector<Link> links_;  // of each stack
};

class Critical {
 public:
    // Only time from `from` up to `until` counts.
    Critical(std::size_t functions, std::int64_t from, std::int64_t until);

    // Adds the next lower class. Throws std::invalid_argument if events are not in order, or of an
    // unknown function.
    void add(const Spans& events);
    const std::vector<std::int64_t>& times() const { return times_; }

 private:
    struct Interval {
        std::int64_t start, end;
        std::int64_t before;  // the length of all intervals before it
    };
    std::int64_t covered(std::int64_t from, std::int64_t until);
    std::int64_t covered_left_of(std::int64_t time, std::size_t at) const;
    void join(const Spans& events);

    std::int64_t from_, until_;
    std::vector<std::int64_t> times_;
    std::vector<std::int64_t> reach_;  // how far each function has been counted
    std::vector<Interval> higher_;     // disjoint, in order
    std::size_t at_ = 0;               // the first of them that ends after the current event starts
};

}  // namespace stepscope
