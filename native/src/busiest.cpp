#include "busiest.hpp"

namespace stepscope {
namespace {

constexpr double ROUNDING = 1e-9;  // sums of 10⁶ numbers in two orders differ by less, relatively

}  // namespace

Busiest BusiestFinder::find(const double* use, std::size_t samples) {
    const double total = split(use, samples);
    if (blocks_.empty()) return {0, samples, samples};
    const double need = share_ * total * (1 - ROUNDING);
    const std::size_t pause = smallest_pause(need);
    std::size_t first = 0;
    double sum = 0;
    for (std::size_t at = 0; at < blocks_.size(); ++at) {
        if (at > 0 && blocks_[at].pause_before > pause) {
            if (sum >= need) return {blocks_[first].begin, blocks_[at - 1].end, pause};
            first = at;
            sum = 0;
        }
        sum += blocks_[at].use;
    }
    return {blocks_[first].begin, blocks_.back().end, pause};
}

// Returns the use of all blocks.
double BusiestFinder::split(const double* use, std::size_t samples) {
    blocks_.clear();
    double total = 0;
    std::size_t last_end = 0;
    for (std::size_t at = 0; at < samples;) {
        while (at < samples && !(use[at] > least_)) ++at;
        if (at == samples) break;
        const std::size_t begin = at;
        double sum = 0;
        for (; at < samples && use[at] > least_; ++at) sum += use[at];
        blocks_.push_back({begin, at, begin - last_end, sum});
        last_end = at;
        total += sum;
    }
    return total;
}

std::size_t BusiestFinder::smallest_pause(double need) {
    longest_.resize(blocks_.size());
    std::size_t head = 0, tail = 0, first = 0;
    std::size_t smallest = ~std::size_t{0};
    double sum = 0;
    for (std::size_t at = 0; at < blocks_.size(); ++at) {
        sum += blocks_[at].use;
        while (tail > head && blocks_[longest_[tail - 1]].pause_before <= blocks_[at].pause_before)
            --tail;
        longest_[tail++] = at;
        while (first < at && sum - blocks_[first].use >= need) sum -= blocks_[first++].use;
        while (head < tail && longest_[head] <= first) ++head;  // the pause before the first block
        if (sum < need) continue;
        const std::size_t pause = head < tail ? blocks_[longest_[head]].pause_before : 0;
        if (pause < smallest) smallest = pause;
    }
    return smallest;
}

}  // namespace stepscope
