// The modes of one group's durations as ARGUS finds them (Zhou et al., 2026, section 5.2).
//
// One bandwidth for the whole group by Scott's rule, every local minimum of the density a
// candidate, two filters. Exact but for the density (density.hpp): counts and percentiles are those
// of the durations themselves. Cost: linear; durations are sorted by cells of the grid, and
// percentiles then selected within a cell.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "density.hpp"
#include "tally.hpp"

namespace stepscope {

class Published {
 public:
    // Adds a row per mode, shortest first; there are durations, and they can be true.
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
    std::vector<std::uint32_t> cells_;   // of each duration: the point of the grid before it
    std::vector<std::int64_t> before_;   // how many durations lie in cells before each
    std::vector<std::int64_t> sorted_;   // by cell
    std::vector<std::int64_t> ends_;     // of the modes, in places of sorted_
};

}  // namespace stepscope
