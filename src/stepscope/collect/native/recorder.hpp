// What happened to operators: a bounded buffer of events, and which works have not ended yet.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shared.hpp"

namespace stepscope {

// One event; `_EVENT` in hooks/native_operators.py has the same layout.
struct Event {
    std::int32_t kind, op, flags, group;
    std::int64_t serial, ordinal, bytes, start_ns, end_ns, peer;
};

enum Kind : std::int32_t { kBegun = 0, kEnded = 1, kFailed = 2, kWaited = 3, kWaitFailed = 4 };

constexpr std::size_t kMostEvents = 65536;
constexpr std::size_t kMostUnfollowed = 1024;
constexpr std::size_t kMostWorks = 4096;
constexpr std::int64_t kUnknown = -1;

using WeakWork = c10::weak_intrusive_ptr<c10d::Work>;

// An operator without a future: it is finished when it was waited for, or cannot be any more.
struct Unfollowed {
    WeakWork work{c10::intrusive_ptr<c10d::Work>()};
    const void* output = nullptr;
    std::int64_t begun_ns = 0;
};

class Recorder {
 public:
    // Numbers the process groups by name; names are kept as long as the process lives.
    int group(const std::string& name) {
        const std::lock_guard<std::mutex> hold(mutex_);
        return group_held(name);
    }

    std::string group_name(int id) {
        const std::lock_guard<std::mutex> hold(mutex_);
        const bool known = id >= 0 && static_cast<std::size_t>(id) < names_.size();
        return known ? names_[static_cast<std::size_t>(id)] : std::string();
    }

    // From now on, DDP's reducer calls all-reduces on this group from inside backward.
    void add_reducer(const std::string& name) {
        const std::lock_guard<std::mutex> hold(mutex_);
        reducers_.insert(group_held(name));
    }

    bool has_reducer(int group) {
        const std::lock_guard<std::mutex> hold(mutex_);
        return reducers_.count(group) != 0;
    }

    std::int64_t begun(Event event, const c10::intrusive_ptr<c10d::Work>& work) {
        const std::lock_guard<std::mutex> hold(mutex_);
        event.serial = ++serial_;
        stepscope_shared.calls.fetch_add(1, std::memory_order_relaxed);
        if (work) remember(work.get(), event.serial);
        push(event);
        return event.serial;
    }

    void ended(std::int64_t serial, bool failed) {
        const std::lock_guard<std::mutex> hold(mutex_);
        push_end(failed ? kFailed : kEnded, serial, now_ns(), now_ns());
    }

    void unfollowed(std::int64_t serial, Unfollowed one) {
        Unfollowed gone;
        const std::lock_guard<std::mutex> hold(mutex_);
        if (unfollowed_.size() >= kMostUnfollowed) {
            push_end(kEnded, unfollowed_.begin()->first, kUnknown, kUnknown);
            gone = let_go(unfollowed_.begin());
        }
        unfollowed_.emplace(serial, std::move(one));
    }

    void waited(const void* work, std::int64_t start_ns, std::int64_t end_ns, bool finished) {
        Unfollowed gone;
        const std::lock_guard<std::mutex> hold(mutex_);
        const auto found = serials_.find(work);
        if (found == serials_.end()) return;
        push_end(finished ? kWaited : kWaitFailed, found->second, start_ns, end_ns);
        const auto open = unfollowed_.find(found->second);
        if (open != unfollowed_.end()) gone = let_go(open);
        if (!finished) return;  // it never ended, and a script may wait again
        serials_.erase(found);
    }

    // `wait_tensor` knows only the address of the operator's result.
    void waited_for(const void* output, std::int64_t start_ns, std::int64_t end_ns) {
        std::vector<Unfollowed> gone;
        const std::lock_guard<std::mutex> hold(mutex_);
        for (auto it = unfollowed_.begin(); it != unfollowed_.end();) {
            const auto one = it++;
            if (one->second.output != output) continue;
            push_end(kWaited, one->first, start_ns, end_ns);
            gone.push_back(let_go(one));
        }
    }

    // Old operators that were never waited for: they are done, or no longer referenced by others.
    void look_after(std::int64_t older_than_ns) {
        const auto is_old = [=](std::int64_t begun_ns) { return begun_ns < older_than_ns; };
        for (const auto& [serial, work] : unfollowed(is_old)) {
            const auto held = work.lock();
            if (held && !held->isCompleted()) continue;
            Unfollowed gone;
            const std::lock_guard<std::mutex> hold(mutex_);
            const auto open = unfollowed_.find(serial);
            if (open == unfollowed_.end()) continue;
            push_end(kEnded, serial, kUnknown, kUnknown);
            gone = let_go(open);
        }
    }

    // Operators on CPUs that began since then, and have not ended as far as is known.
    std::int64_t open(std::int64_t since_ns) {
        std::int64_t count = followed_.load();
        const auto is_recent = [=](std::int64_t begun_ns) { return begun_ns >= since_ns; };
        for (const auto& [serial, work] : unfollowed(is_recent)) {
            const auto held = work.lock();
            if (held && !held->isCompleted()) ++count;
        }
        return count;
    }

    void follows(std::int64_t more) { followed_.fetch_add(more); }

    std::int64_t drain(Event* out, std::size_t most) {
        const std::lock_guard<std::mutex> hold(mutex_);
        const std::size_t count = std::min(most, events_.size());
        std::memcpy(out, events_.data(), count * sizeof(Event));
        events_.erase(events_.begin(), events_.begin() + static_cast<std::ptrdiff_t>(count));
        return static_cast<std::int64_t>(count);
    }

    // Whether operators have futures depends on operator and backend only, and does not change.
    bool has_future(int op, int group) {
        const std::lock_guard<std::mutex> hold(mutex_);
        return futureless_.count({op, group}) == 0;
    }

    void has_no_future(int op, int group) {
        const std::lock_guard<std::mutex> hold(mutex_);
        futureless_.insert({op, group});
    }

 private:
    int group_held(const std::string& name) {
        const auto [found, fresh] = ids_.try_emplace(name, static_cast<int>(names_.size()));
        if (fresh) names_.push_back(name);
        return found->second;
    }

    // Only an address, which may be reused once the work is gone: the newest owner counts.
    void remember(const void* work, std::int64_t serial) {
        if (serials_.size() >= kMostWorks) serials_.clear();
        serials_[work] = serial;
    }

    using Open = std::map<std::int64_t, Unfollowed>;

    // Released works are destroyed with this owner. It must not hold the mutex then, because a
    // destructor may need the GIL, and the thread with the GIL may wait for the mutex.
    Unfollowed let_go(Open::iterator one) {
        Unfollowed gone = std::move(one->second);
        unfollowed_.erase(one);
        return gone;
    }

    template <typename When>
    std::vector<std::pair<std::int64_t, WeakWork>> unfollowed(When begun) {
        const std::lock_guard<std::mutex> hold(mutex_);
        std::vector<std::pair<std::int64_t, WeakWork>> found;
        for (const auto& [serial, one] : unfollowed_) {
            if (begun(one.begun_ns)) found.emplace_back(serial, one.work);
        }
        return found;
    }

    void push_end(Kind kind, std::int64_t serial, std::int64_t start_ns, std::int64_t end_ns) {
        Event event{};
        event.kind = kind;
        event.serial = serial;
        event.start_ns = start_ns;
        event.end_ns = end_ns;
        push(event);
    }

    void push(const Event& event) {
        if (events_.size() < kMostEvents) {
            events_.push_back(event);
        } else {
            ++stepscope_shared.dropped;
        }
    }

    std::mutex mutex_;
    std::vector<Event> events_;
    std::vector<std::string> names_;
    std::unordered_map<std::string, int> ids_;
    std::set<int> reducers_;
    std::set<std::pair<int, int>> futureless_;
    std::unordered_map<const void*, std::int64_t> serials_;
    Open unfollowed_;
    std::int64_t serial_ = 0;
    std::atomic<std::int64_t> followed_{0};  // works whose futures are not there yet
};

}  // namespace stepscope
