// Who this process is, from what launchers set: as src/stepscope/collect/identity.py tells it.
#pragma once

#include <string>

#include "clock.hpp"

namespace stepscope {

struct Identity {
    std::string socket, job, store, host;
    int rank, world_size, local_rank, attempt;
    // A launcher's variable says which rank this is.
    bool is_ranked;
};

Identity from_environment();

// Another process of this rank records: we are a child that inherited its environment.
bool is_anothers();

// The payload of a HELLO packet, but for its last bracket.
std::string hello_of(const Identity& who, const std::string& source, const ClockPair& clocks);

}  // namespace stepscope
