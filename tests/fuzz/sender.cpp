// Feeds mutated bytes to the code inside of ranks that reads bytes of others, under sanitizers:
// packets of the processor, variables of launchers, command lines, names of kernels; and to the
// check of records, with which the processor reads packets of ranks.
//
//     sender SECONDS SEED
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "../../native/cupti/selection.hpp"
#include "../../native/sender/connection.hpp"
#include "../../native/sender/identity.hpp"
#include "../../native/sender/names.hpp"
#include "../../native/sender/text.hpp"
#include "mutation.hpp"
#include "records.hpp"

using stepscope::Connection;
using stepscope::Header;
using stepscope::Packet;
using stepscope::fuzz::below;

namespace {

constexpr std::uint32_t MAGIC = 0x70635353;
constexpr std::int64_t LIMIT = std::int64_t{1} << 61;
const std::string SAMPLE = std::string("{\"watch\": \"j\", \"nccl_events\": 65536}") + '\0' +
                           "python3" + '\0' + "-X" + '\0' + "dev" + '\0' + "-m" + '\0' +
                           "torch.distributed.run" + '\0' + "3\xC3\xA9\xF0\x9F\x9A\x80";

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
        listening_ = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
        const auto* bound = reinterpret_cast<const sockaddr*>(&address);
        require(::bind(listening_, bound, sizeof address) == 0 && ::listen(listening_, 1) == 0);
        require(connection_.open());
        other_ = ::accept(listening_, nullptr, nullptr);
    }
    ~Talk() {
        ::close(other_);
        ::close(listening_);
        ::unlink((folder_ + "/socket").c_str());
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
    int listening_ = -1, other_ = -1;
};

std::string packet(const std::string& payload) {
    const Header header{MAGIC, 1, Packet::control, 0, 0, 0, 1};
    return std::string(reinterpret_cast<const char*>(&header), sizeof header) + payload;
}

std::vector<std::string> words(const std::string& text) {
    std::vector<std::string> found;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('\0', at), text.size());
        found.push_back(text.substr(at, end - at));
        at = end + 1;
    }
    return found;
}

void as_environment(const std::vector<std::string>& values) {
    static const char* const keys[] = {"RANK",           "WORLD_SIZE",      "STEPSCOPE_JOB",
                                       "STEPSCOPE_HOST", "STEPSCOPE_OWNER", "SLURM_PROCID"};
    for (const char* key : keys) {
        const std::string& value = values.empty() ? std::string() : values[below(values.size())];
        below(3) == 0 ? ::unsetenv(key) : ::setenv(key, value.c_str(), 1);
    }
    ::setenv("STEPSCOPE_SOCKET", "/nowhere", 1);
}

void parse(Talk& talk, const std::string& text) {
    const std::string heard = talk.heard(below(2) == 0 ? packet(text) : text);
    stepscope::number_in(heard, "nccl_events", -1);
    const std::vector<std::string> found = words(text);
    as_environment(found);
    const stepscope::Identity who = stepscope::from_environment();
    require(who.rank >= 0 && who.world_size > who.rank);
    require(stepscope::hello_of(who, "nccl", {1, 2}).front() == '{');
    stepscope::cupti::refusal(found);
    stepscope::Names names;
    for (const std::string& word : found) names.number(word);
    for (std::size_t first = 0; first < names.size();) {
        const std::size_t before = first;
        names.told_from(first, stepscope::MOST_PAYLOAD_BYTES);
        require(first > before);
    }
    stepscope::survey(text, LIMIT);
}

}  // namespace

int main(int count, char** given) {
    if (count != 3) return 2;
    Talk talk;
    stepscope::fuzz::feed(given[1], given[2], SAMPLE,
                          [&](const std::string& text) { parse(talk, text); });
}
