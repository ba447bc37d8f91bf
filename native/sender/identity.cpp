#include "identity.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>

#include "text.hpp"

namespace stepscope {
namespace {

using Keys = std::initializer_list<const char*>;
constexpr int ABSENT = -1;
// So that a world that is larger than any rank fits an int; a processor refuses far smaller ones.
constexpr long LARGEST = 2147483646;

const char* text_of(const char* key) {
    const char* text = std::getenv(key);
    return text == nullptr ? "" : text;
}

// A decimal number; ABSENT if the text is not one, or if it does not fit the wire format.
int decimal(const char* text) {
    long value = 0;
    for (const char* at = text; *at != '\0'; ++at) {
        if (*at < '0' || *at > '9') return ABSENT;
        value = value * 10 + (*at - '0');
        if (value > LARGEST) return ABSENT;
    }
    return *text == '\0' ? ABSENT : static_cast<int>(value);
}

int first(Keys keys, int otherwise) {
    for (const char* key : keys) {
        const int value = decimal(text_of(key));
        if (value != ABSENT) return value;
    }
    return otherwise;
}

std::string host_name() {
    for (const char* key : {"STEPSCOPE_HOST", "NODE_NAME", "SLURMD_NODENAME"}) {
        if (*text_of(key) != '\0') return text_of(key);
    }
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    return name;
}

void append_field(std::string& out, const char* key, const std::string& text) {
    out += out.empty() ? "{" : ",";
    append_string(out, key);
    out += ':';
    append_string(out, text);
}

void append_field(std::string& out, const char* key, std::int64_t number) {
    out += ',';
    append_string(out, key);
    out += ':';
    out += std::to_string(number);
}

}  // namespace

Identity from_environment() {
    const int rank =
        first({"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK"},
              ABSENT);
    const int world = first(
        {"WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"},
        1);
    const int local = first({"LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK",
                             "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK"},
                            std::max(rank, 0));
    const int attempt = first({"TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"}, 0);
    const char* job = std::getenv("STEPSCOPE_JOB");
    return {text_of("STEPSCOPE_SOCKET"),
            job == nullptr ? "job" : job,
            text_of("STEPSCOPE_STORE"),
            host_name(),
            std::max(rank, 0),
            std::max(world, std::max(rank, 0) + 1),
            local,
            attempt,
            rank != ABSENT};
}

bool is_anothers() {
    const char* owner = text_of("STEPSCOPE_OWNER");
    return *owner != '\0' && decimal(owner) != getpid();
}

std::string hello_of(const Identity& who, const std::string& source, const ClockPair& clocks) {
    std::string out;
    append_field(out, "source", source);
    append_field(out, "job", who.job);
    append_field(out, "store", who.store);
    append_field(out, "host", who.host);
    append_field(out, "rank", who.rank);
    append_field(out, "world_size", who.world_size);
    append_field(out, "local_rank", who.local_rank);
    append_field(out, "pid", getpid());
    append_field(out, "thread_id", getpid());
    append_field(out, "wall_ns", clocks.wall_ns);
    append_field(out, "mono_ns", clocks.mono_ns);
    append_field(out, "attempt", who.attempt);
    return out;
}

}  // namespace stepscope
