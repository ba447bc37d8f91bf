// The critical duration of an execution: EROICA (Guan et al., 2026), section 4.2, Algorithm 1.
//
// Of the samples of a resource's use during one execution, the part with most of the use and the
// shortest pauses: the smallest g for which a subinterval has at least a share of all use and no
// more than g zeros in a row, and the longest such subinterval that neither begins nor ends with a
// zero. The paper searches g by bisection, n log n. Here g is the smallest, over the shortest runs
// of samples that have the share, of the longest pause within (two pointers and a queue of maxima),
// in linear time; with a share above one half the subinterval is then unique.
#pragma once

#include <cstddef>
#include <vector>

namespace stepscope {

struct Busiest {
    std::size_t begin = 0, end = 0;  // of the samples; all of them if there is no use
    std::size_t pause = 0;           // g
};

class BusiestFinder {
 public:
    // Args:
    //     share: of all use, above one half.
    //     least: use up to this counts as zero; 0 as published.
    BusiestFinder(double share, double least) : share_(share), least_(least) {}

    Busiest find(const double* use, std::size_t samples);

 private:
    struct Block {  // of samples in use
        std::size_t begin, end, pause_before;
        double use;
    };
    double split(const double* use, std::size_t samples);
    std::size_t smallest_pause(double need);

    double share_, least_;
    std::vector<Block> blocks_;
    std::vector<std::size_t> longest_;  // blocks in order; the pauses before them get shorter
};

}  // namespace stepscope
