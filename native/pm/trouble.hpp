// The reason why nothing is sampled, in one line for the user.
#pragma once

#include <stdexcept>

namespace stepscope::pm {

struct Trouble : std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace stepscope::pm
