#include "selection.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>

#include "../sender/identity.hpp"

namespace stepscope::cupti {
namespace {

using Words = std::initializer_list<const char*>;
constexpr const char* OWNER = "STEPSCOPE_CUPTI_OWNER";
constexpr std::size_t LONGEST_COMMAND = 65536;

// Programs and modules that start ranks.
constexpr Words LAUNCHERS = {"torchrun",
                             "accelerate",
                             "deepspeed",
                             "torch.distributed.run",
                             "torch.distributed.launch",
                             "accelerate.commands.launch",
                             "deepspeed.launcher.runner",
                             "deepspeed.launcher.launch"};
// Parts of the program text, module or path of processes that ranks start themselves.
constexpr Words HELPERS = {"compile_worker", "spawn_main", "forkserver", "resource_tracker"};

bool takes_a_word(const std::string& option) { return option == "-X" || option == "-W"; }

// What a command line runs: its first word or, if that is Python, the script, module or program.
std::string program_of(const std::vector<std::string>& words) {
    if (words.empty()) return "";
    std::size_t at = 1;
    for (; at < words.size() && words[at].size() > 1 && words[at][0] == '-'; ++at) {
        if ((words[at] == "-c" || words[at] == "-m") && at + 1 < words.size()) return words[at + 1];
        if (takes_a_word(words[at])) ++at;
    }
    const bool is_python = words[0].find("python") != std::string::npos;
    return is_python && at < words.size() ? words[at] : words[0];
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool is_anothers(const char* variable) {
    const char* owner = std::getenv(variable);
    return owner != nullptr && owner != std::to_string(getpid());
}

}  // namespace

const char* refusal(const std::vector<std::string>& command_line) {
    const Identity who = from_environment();
    if (who.socket.empty()) return "no processor socket is set";
    if (!who.is_ranked) return "no launcher has set its rank";
    if (stepscope::is_anothers() || is_anothers(OWNER)) return "another process records this rank";
    const std::string program = program_of(command_line), name = last_part(program);
    const auto is_name = [&](const char* word) { return name == word; };
    const auto is_in = [&](const char* word) { return program.find(word) != std::string::npos; };
    if (std::any_of(LAUNCHERS.begin(), LAUNCHERS.end(), is_name)) return "it is a launcher";
    if (std::any_of(HELPERS.begin(), HELPERS.end(), is_in)) return "it is a helper of a rank";
    return nullptr;
}

std::vector<std::string> command_line() {
    std::string text(LONGEST_COMMAND, '\0');
    const int file = ::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    const ssize_t length = file < 0 ? 0 : read(file, text.data(), text.size());
    if (file >= 0) close(file);
    text.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
    std::vector<std::string> words;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('\0', at), text.size());
        words.push_back(text.substr(at, end - at));
        at = end + 1;
    }
    return words;
}

void claim() { setenv(OWNER, std::to_string(getpid()).c_str(), 1); }

}  // namespace stepscope::cupti
