#include "passes.hpp"

#include <algorithm>
#include <utility>

namespace stepscope {
namespace {

using Column = std::vector<std::int64_t>;

// The durations of the slowest members, [passes, lanes].
Column slowest(const PassOrder& order, const PassTimes& times) {
    const std::size_t lanes = times.lanes;
    Column longest(order.passes * lanes);
    for (std::size_t pass = 0; pass < order.passes; ++pass) {
        std::int64_t* to = &longest[pass * lanes];
        const std::int64_t* from = times.durations + pass * times.members * lanes;
        std::copy(from, from + lanes, to);
        for (std::size_t member = 1; member < times.members; ++member) {
            from += lanes;
            for (std::size_t lane = 0; lane < lanes; ++lane)
                to[lane] = std::max(to[lane], from[lane]);
        }
    }
    return longest;
}

class Walk {
 public:
    Walk(const PassOrder& order, const PassTimes& times)
        : order_(order), times_(times), durations_(slowest(order, times)) {}

    Slacks slacks() {
        found_.starts.assign(order_.passes * times_.lanes, 0);
        found_.ends.assign(times_.lanes, 0);
        for (std::size_t at = 0; at < order_.passes; ++at) begin(order_.order[at]);
        found_.slacks.resize(order_.passes * times_.lanes);
        for (std::size_t pass = 0; pass < order_.passes; ++pass)
            std::copy(found_.ends.begin(), found_.ends.end(), row(found_.slacks, pass));
        for (std::size_t at = order_.passes; at-- > 0;) retreat(order_.order[at]);
        return std::move(found_);
    }

 private:
    std::int64_t* row(Column& column, std::size_t pass) { return &column[pass * times_.lanes]; }
    const std::int64_t* lead(std::size_t pass) const {
        return times_.leads == nullptr ? nullptr : times_.leads + pass * times_.lanes;
    }

    // The earliest start.
    void begin(std::size_t pass) {
        std::int64_t* start = row(found_.starts, pass);
        const std::size_t lanes = times_.lanes;
        for (std::size_t which = 0; which < BEFORE; ++which) {
            const std::int32_t before = order_.before[pass * BEFORE + which];
            if (before < 0) continue;
            const std::int64_t* from = row(found_.starts, before);
            const std::int64_t* lasted = row(durations_, before);
            for (std::size_t lane = 0; lane < lanes; ++lane)
                start[lane] = std::max(start[lane], from[lane] + lasted[lane]);
        }
        if (const std::int64_t* late = lead(pass))
            for (std::size_t lane = 0; lane < lanes; ++lane) start[lane] += late[lane];
        const std::int64_t* lasted = row(durations_, pass);
        for (std::size_t lane = 0; lane < lanes; ++lane)
            found_.ends[lane] = std::max(found_.ends[lane], start[lane] + lasted[lane]);
    }

    // `slacks` holds latest ends until the pass itself is reached.
    void retreat(std::size_t pass) {
        std::int64_t* latest = row(found_.slacks, pass);
        const std::int64_t* lasted = row(durations_, pass);
        const std::int64_t* late = lead(pass);
        const std::size_t lanes = times_.lanes;
        for (std::size_t lane = 0; lane < lanes; ++lane) latest[lane] -= lasted[lane];
        for (std::size_t which = 0; which < BEFORE; ++which) {
            const std::int32_t before = order_.before[pass * BEFORE + which];
            if (before < 0) continue;
            std::int64_t* end = row(found_.slacks, before);
            if (late == nullptr)
                for (std::size_t lane = 0; lane < lanes; ++lane)
                    end[lane] = std::min(end[lane], latest[lane]);
            else
                for (std::size_t lane = 0; lane < lanes; ++lane)
                    end[lane] = std::min(end[lane], latest[lane] - late[lane]);
        }
        const std::int64_t* start = row(found_.starts, pass);
        for (std::size_t lane = 0; lane < lanes; ++lane) latest[lane] -= start[lane];
    }

    const PassOrder& order_;
    const PassTimes& times_;
    Column durations_;
    Slacks found_;
};

}  // namespace

Slacks slacks_of(const PassOrder& order, const PassTimes& times) {
    return Walk(order, times).slacks();
}

}  // namespace stepscope
