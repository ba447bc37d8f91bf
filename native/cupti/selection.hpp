// Which processes are recorded: the ranks themselves, and none of those that inherit their
// environment.
#pragma once

#include <string>
#include <vector>

namespace stepscope::cupti {

// Null for a rank, else why not, in a few words.
//
// A launcher, a compiler or a data loader that opens a GPU has its rank's variables as well: it is
// told by its command line, or by the owner, which is the first process of a rank to come here.
const char* refusal(const std::vector<std::string>& command_line);

// This process's own.
std::vector<std::string> command_line();

// Makes this process the owner, for its children to see.
void claim();

}  // namespace stepscope::cupti
