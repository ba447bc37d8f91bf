// Selects the processes to record: the ranks themselves, and not the processes that inherit their
// environment.
#pragma once

#include <string>
#include <vector>

namespace stepscope::cupti {

// Null for a rank, else the reason not to record, in a few words.
//
// A launcher, a compiler or a data loader that opens a GPU has its rank's variables as well. It is
// recognised by its command line, or by the owner variable, which the first process of a rank sets.
const char* refusal(const std::vector<std::string>& command_line);

// The command line of this process.
std::vector<std::string> command_line();

// Makes this process the owner, which its children see in their environment.
void claim();

}  // namespace stepscope::cupti
