// The modes of a histogram: divided at the deepest valley, and either side anew.
//
// The published method (published.hpp) has one bandwidth for a whole group, made wide by the very
// modes that it is to part. Here each part has its own, and a valley parts only where it is deep,
// and deeper than chance makes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "density.hpp"
#include "tally.hpp"

namespace stepscope {

class Division {
 public:
    // Adds a row per mode, shortest first; the tally is not empty.
    void add_rows(const Tally& tally, std::int64_t group, std::vector<Row>& rows);

 private:
    struct Found {
        std::size_t cut;  // the first entry behind the valley
        bool doubtful;    // whether there are some that may be chance
    };
    void divide(const Tally& tally, std::int64_t least);
    std::size_t deepest_valley(const Tally& tally, Slice slice, std::int64_t least);
    void estimate(const Tally& tally, Slice slice, double bandwidth);
    Found search(const Tally& tally, Slice slice, std::int64_t least) const;
    void join_near(const Tally& tally);

    Density density_;
    std::vector<float> highest_behind_;
    std::vector<Slice> pending_;     // parts to look at, the shortest durations last
    std::vector<std::size_t> ends_;  // of the modes, in entries of the tally
};

}  // namespace stepscope
