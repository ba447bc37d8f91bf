// Why nothing is sampled, in one line for a person.
#pragma once

#include <stdexcept>

namespace stepscope::pm {

struct Trouble : std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace stepscope::pm
