// The modes of one group's durations by ARGUS' method (Zhou et al., 2026, section 5.2).
//
// One bandwidth for the whole group by Scott's rule; every local minimum of the density is a
// candidate; then two filters. Exact except for the density (density.hpp): counts and percentiles
// are those of the durations themselves. Cost: linear. Durations are sorted by grid cell, and
// percentiles are selected within a cell.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "density.hpp"
#include "tally.hpp"

namespace stepscope {

class Published {
 public:
    // Adds one row per mode, shortest first; there must be durations, all plausible.
    void add_rows(const std::int64_t* durations, std::size_t samples, std::int64_t group,
                  std::vector<Row>& rows);

 private:
    double deviation();
    std::size_t fill_cells(double bandwidth);
    void sort_by_cell(const std::int64_t* durations, std::size_t cells);
    void choose_valleys();
    Mode mode(std::int64_t begin, std::int64_t end);
    std::int64_t at(std::int64_t place);

    Density density_;
    std::vector<double> logs_;
    double shortest_ = 0, longest_ = 0;  // of the logs
    std::vector<std::uint32_t> cells_;   // of each duration: the grid point before it
    std::vector<std::int64_t> before_;   // how many durations are in cells before each
    std::vector<std::int64_t> sorted_;   // by cell
    std::vector<std::int64_t> ends_;     // of the modes, as positions in sorted_
};

}  // namespace stepscope
