// How much of the time kernels are recorded, so that recording stays within a share of all time.
//
// Each record of a kernel, copy or memset costs the GPU about a microsecond, and the call that
// launches it the host several, which is much for a model of very short kernels. Then they are
// recorded during one part in 2, 4, … 64 of every ten seconds. The part begins at a time drawn from
// the number of the ten seconds, which is the same on all ranks and hosts whose clocks agree: ranks
// that wait for each other pay at the same time, and steps of any length are met at all places. In
// a period that turns out to have too many records, the rest is not recorded, so that those of
// later ones stand for as many as there are parts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "../sender/clock.hpp"

namespace stepscope::cupti {

class Budget {
 public:
    // Which share of the time recording may cost, where each record costs so much; 1 and more
    // records always.
    explicit Budget(double share, double record_ns = ON_DEVICE_NS)
        : share_(share), record_ns_(record_ns) {}

    // Measured on an H200 (driver 580, CUPTI 13.0): steps of 34 ms with 1,275 kernels and memsets
    // took 0.5 to 1.1 ms longer, 0.4 to 0.85 µs for each.
    static constexpr double ON_DEVICE_NS = 1000.0;
    // Measured there as well, once and without a control: the host took 8 to 9 µs more for each
    // call in two jobs that waited for their hosts.
    static constexpr double ON_HOST_NS = 8000.0;

    // One in how many parts of the time is recorded.
    int parts() const { return parts_; }
    // Whether to record at this wall-clock time.
    bool is_on(std::int64_t wall_ns) const;
    // How long until that may change.
    std::int64_t until_change(std::int64_t wall_ns) const;
    // So many records came of a time in which `recorded_ns` were recorded.
    void took(std::int64_t wall_ns, std::int64_t records, std::int64_t recorded_ns);

 private:
    static constexpr std::size_t REMEMBERED = 6;  // periods: a minute

    std::int64_t begin_of(std::int64_t period) const;
    int parts_for(std::int64_t records, std::int64_t recorded_ns) const;
    void begin_period(std::int64_t period);

    const double share_, record_ns_;
    int parts_ = 1;
    std::int64_t period_ = 0, over_in_ = -1;      // the period in which there were too many records
    std::int64_t records_ = 0, recorded_ns_ = 0;  // of this period
    std::array<int, REMEMBERED> needed_{};        // the parts that the last periods needed
};

}  // namespace stepscope::cupti
