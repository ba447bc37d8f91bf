// The rank and the job of this process, from the variables that launchers set. Must agree with
// src/stepscope/collect/identity.py.
#pragma once

#include <string>

#include "clock.hpp"

namespace stepscope {

struct Identity {
    std::string socket, job, store, host;
    int rank, world_size, local_rank, attempt;
    // Whether a launcher's variable says which rank this is.
    bool is_ranked;
};

Identity from_environment();

// Whether another process records this rank: we are a child that inherited its environment.
bool is_anothers();

// The payload of a HELLO packet, without its closing bracket.
std::string hello_of(const Identity& who, const std::string& source, const ClockPair& clocks);

}  // namespace stepscope
