// Fuzzes the code inside of ranks that reads bytes of others: packets of the processor, variables
// of launchers, command lines, names of kernels; and the check of records, with which the processor
// reads packets of ranks. Each is given the whole input. Words in it are ended by zeros; the first
// ones are the variables' values, empty for one that is not set.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "../../native/cupti/selection.hpp"
#include "../../native/sender/connection.hpp"
#include "../../native/sender/identity.hpp"
#include "../../native/sender/names.hpp"
#include "../../native/sender/text.hpp"
#include "records.hpp"

using stepscope::Connection;
using stepscope::Header;
using stepscope::Packet;

namespace {

constexpr std::uint32_t MAGIC = 0x70635353;
constexpr std::int64_t LIMIT = std::int64_t{1} << 61;

void require(bool holds) {
    if (!holds) std::abort();
}

// A connection to a processor that says what we like.
class Talk {
 public:
    Talk() : folder_(fresh()), connection_(folder_ + "/socket") {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::snprintf(address.sun_path, sizeof address.sun_path, "%s/socket", folder_.c_str());
        const int listening = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
        const auto* bound = reinterpret_cast<const sockaddr*>(&address);
        require(::bind(listening, bound, sizeof address) == 0 && ::listen(listening, 1) == 0);
        require(connection_.open());
        other_ = ::accept(listening, nullptr, nullptr);
        ::close(listening);
        ::unlink(address.sun_path);
        ::rmdir(folder_.c_str());
    }

    // What is heard when these bytes are sent; empty packets would be an end.
    std::string heard(const std::string& packet) {
        std::string payload = "old";
        if (packet.empty() || ::send(other_, packet.data(), packet.size(), 0) < 0) return "";
        require(connection_.hear(payload) == stepscope::Sent::yes);
        return payload;
    }

 private:
    static std::string fresh() {
        char name[] = "/tmp/stepscope-fuzz-XXXXXX";
        require(::mkdtemp(name) != nullptr);
        return name;
    }

    std::string folder_;
    Connection connection_;
    int other_ = -1;
};

std::string packet(const std::string& payload) {
    const Header header{MAGIC, 1, Packet::control, 0, 0, 0, 1};
    return std::string(reinterpret_cast<const char*>(&header), sizeof header) + payload;
}

std::vector<std::string> words_of(const std::string& text) {
    std::vector<std::string> found;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('\0', at), text.size());
        found.push_back(text.substr(at, end - at));
        at = end + 1;
    }
    return found;
}

// Makes the first words the whole environment, and returns the others. setenv would keep every
// value that there ever was.
std::vector<std::string> without_variables(const std::vector<std::string>& words) {
    static const char* const keys[] = {"RANK",
                                       "WORLD_SIZE",
                                       "LOCAL_RANK",
                                       "SLURM_PROCID",
                                       "TORCHELASTIC_RESTART_COUNT",
                                       "STEPSCOPE_JOB",
                                       "STEPSCOPE_STORE",
                                       "STEPSCOPE_HOST",
                                       "STEPSCOPE_SOCKET",
                                       "STEPSCOPE_OWNER",
                                       "STEPSCOPE_CUPTI_OWNER"};
    static std::vector<std::string> lines;
    static std::vector<char*> pointers;
    lines.clear();
    pointers.clear();
    std::size_t at = 0;
    for (const char* key : keys) {
        if (at == words.size()) break;
        if (!words[at].empty()) lines.push_back(std::string(key) + '=' + words[at]);
        ++at;
    }
    for (std::string& line : lines) pointers.push_back(line.data());
    pointers.push_back(nullptr);
    environ = pointers.data();
    return {words.begin() + static_cast<std::ptrdiff_t>(at), words.end()};
}

void name(const std::vector<std::string>& words) {
    stepscope::Names names;
    for (const std::string& word : words) names.number(word);
    for (std::size_t first = 0; first < names.size();) {
        const std::size_t before = first;
        names.told_from(first, stepscope::MOST_PAYLOAD_BYTES);
        require(first > before);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static Talk talk;
    const std::string text(reinterpret_cast<const char*>(data), size);
    stepscope::number_in(talk.heard(text), "nccl_events", -1);
    const std::string request = talk.heard(packet(text));
    for (const char* key : {"nccl_events", "losses_stored"}) stepscope::number_in(request, key, -1);
    const std::vector<std::string> command_line = without_variables(words_of(text));
    const stepscope::Identity who = stepscope::from_environment();
    require(who.rank >= 0 && who.world_size > who.rank);
    require(stepscope::hello_of(who, "nccl", {1, 2}).front() == '{');
    stepscope::cupti::refusal(command_line);
    name(command_line);
    stepscope::survey(text, LIMIT);
    return 0;
}
