// Log-binned histograms of many groups: what a host keeps of a window.
//
//     group ──▶ places_: one per octave ──▶ blocks_: 128 counts, made when first needed
//
// Lossy: see log_bins.hpp. Adding in pieces gives the same result as adding all at once.
// Memory: 200 B per group, and 512 B per octave in which it has samples, up to a limit; what does
// not fit is counted but not kept.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "log_bins.hpp"
#include "tally.hpp"

namespace stepscope {

class Histograms {
 public:
    Histograms(std::size_t most_groups, std::size_t most_blocks);

    // What was not added: implausible durations, and those for which there was no room.
    struct Refused {
        std::size_t impossible = 0, no_room = 0;
    };
    Refused add(const std::uint32_t* groups, const std::int64_t* durations, std::size_t events);
    std::vector<Row> modes() const;

    std::size_t size_bytes() const;

 private:
    using Block = std::array<std::uint32_t, BINS_PER_OCTAVE>;
    static constexpr std::uint32_t NONE = ~std::uint32_t{0};

    std::size_t add_known(const std::uint32_t* groups, const std::int64_t* durations,
                          std::size_t events);
    std::uint32_t* counter(std::uint32_t group, std::uint32_t bin);
    std::uint32_t* made(std::uint32_t group, std::uint32_t octave);
    template <class Visit>
    void each_bin(std::size_t group, Visit&& visit) const;
    std::size_t groups() const { return places_.size() / OCTAVES; }

    std::size_t most_groups_, most_blocks_;
    std::uint64_t events_ = 0;
    std::vector<std::uint32_t> places_;
    std::vector<Block> blocks_;
};

}  // namespace stepscope
