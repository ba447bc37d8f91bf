#include "histograms.hpp"

#include <algorithm>
#include <limits>

#include "division.hpp"

namespace stepscope {
namespace {

// The limit for one object, so that no counter can overflow.
constexpr std::uint64_t MOST_EVENTS = std::numeric_limits<std::uint32_t>::max();

}  // namespace

Histograms::Histograms(std::size_t most_groups, std::size_t most_blocks)
    : most_groups_(most_groups), most_blocks_(most_blocks) {}

Histograms::Refused Histograms::add(const std::uint32_t* groups, const std::int64_t* durations,
                                    std::size_t events) {
    Refused refused;
    const std::size_t taken = std::min<std::uint64_t>(events, MOST_EVENTS - events_);
    for (std::size_t event = 0; event < taken;) {
        event += add_known(groups + event, durations + event, taken - event);
        if (event == taken) break;
        // the first of a group in an octave, or not countable
        if (!possible(durations[event]))
            ++refused.impossible;
        else if (std::uint32_t* const count = counter(groups[event], bin_of(durations[event])))
            ++*count;
        else
            ++refused.no_room;
        ++event;
    }
    refused.no_room += events - taken;
    events_ += events - refused.no_room - refused.impossible;
    return refused;
}

// Counts events up to the first one that needs more than a lookup of its counter; returns how many.
std::size_t Histograms::add_known(const std::uint32_t* groups, const std::int64_t* durations,
                                  std::size_t events) {
    const std::uint32_t* const places = places_.data();
    const std::size_t known = places_.size();
    Block* const blocks = blocks_.data();
    std::size_t event = 0;
    for (; event < events && possible(durations[event]); ++event) {
        const std::uint32_t bin = bin_of(durations[event]);
        const std::size_t place = std::size_t{groups[event]} * OCTAVES + bin / BINS_PER_OCTAVE;
        if (place >= known || places[place] == NONE) break;
        ++blocks[places[place]][bin % BINS_PER_OCTAVE];
    }
    return event;
}

std::uint32_t* Histograms::counter(std::uint32_t group, std::uint32_t bin) {
    const std::uint32_t octave = bin / BINS_PER_OCTAVE;
    const std::size_t place = std::size_t{group} * OCTAVES + octave;
    if (place < places_.size() && places_[place] != NONE)
        return &blocks_[places_[place]][bin % BINS_PER_OCTAVE];
    std::uint32_t* const block = made(group, octave);
    return block == nullptr ? nullptr : block + bin % BINS_PER_OCTAVE;
}

std::uint32_t* Histograms::made(std::uint32_t group, std::uint32_t octave) {
    if (group >= most_groups_ || blocks_.size() >= most_blocks_) return nullptr;
    if (group >= groups()) places_.resize((std::size_t{group} + 1) * OCTAVES, NONE);
    places_[std::size_t{group} * OCTAVES + octave] = static_cast<std::uint32_t>(blocks_.size());
    return blocks_.emplace_back(Block{}).data();
}

template <class Visit>
void Histograms::each_bin(std::size_t group, Visit&& visit) const {
    for (std::uint32_t octave = 0; octave < OCTAVES; ++octave) {
        const std::uint32_t place = places_[group * OCTAVES + octave];
        if (place == NONE) continue;
        const Block& block = blocks_[place];
        for (std::uint32_t at = 0; at < BINS_PER_OCTAVE; ++at)
            if (block[at] != 0) visit(octave * BINS_PER_OCTAVE + at, block[at]);
    }
}

std::vector<Row> Histograms::modes() const {
    Division division;
    Tally tally;
    std::vector<Row> rows;
    for (std::size_t group = 0; group < groups(); ++group) {
        tally.clear();
        each_bin(group, [&](std::uint32_t bin, std::uint32_t count) { tally.add(bin, count); });
        if (tally.whole().end > 0) division.add_rows(tally, static_cast<std::int64_t>(group), rows);
    }
    return rows;
}

std::size_t Histograms::size_bytes() const {
    return places_.capacity() * sizeof(std::uint32_t) + blocks_.capacity() * sizeof(Block);
}

}  // namespace stepscope
