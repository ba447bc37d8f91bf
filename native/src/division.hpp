// Finds the modes of a histogram by splitting it at the deepest valley, and either side again.
//
// The published method (published.hpp) has one bandwidth for the whole group, which is widened by
// the very modes that it is to separate. Here each part has its own bandwidth, and a valley only
// splits a part if it is deep, and deeper than chance would make it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "density.hpp"
#include "tally.hpp"

namespace stepscope {

class Division {
 public:
    // Adds one row per mode, shortest first; the tally is not empty.
    void add_rows(const Tally& tally, std::int64_t group, std::vector<Row>& rows);

 private:
    struct Found {
        std::size_t cut;  // the first entry after the valley
        bool doubtful;    // whether some valleys may be due to chance
    };
    void divide(const Tally& tally, std::int64_t least);
    std::size_t deepest_valley(const Tally& tally, Slice slice, std::int64_t least);
    void estimate(const Tally& tally, Slice slice, double bandwidth);
    Found search(const Tally& tally, Slice slice, std::int64_t least) const;
    void join_near(const Tally& tally);

    Density density_;
    std::vector<float> highest_behind_;
    std::vector<Slice> pending_;     // parts still to split, the shortest durations last
    std::vector<std::size_t> ends_;  // of the modes, in entries of the tally
};

}  // namespace stepscope
