// Packets on a socket, in the format of src/stepscope/wire/frames.py. Nothing here blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "descriptor.hpp"
#include "record.hpp"

namespace stepscope {

enum class Packet : std::uint16_t { hello = 1, names = 2, records = 3, control = 4 };

struct Header {
    std::uint32_t magic;
    std::uint16_t version;
    Packet kind;
    std::uint32_t count, dropped;
    std::uint64_t packet, pid;
};
static_assert(sizeof(Header) == 32, "a header is 32 bytes on the wire");

constexpr std::size_t MOST_PACKET_BYTES = 65536;
constexpr std::size_t MOST_PAYLOAD_BYTES = MOST_PACKET_BYTES - sizeof(Header);
constexpr std::size_t MOST_RECORDS = MOST_PAYLOAD_BYTES / sizeof(Record);

enum class Sent { yes, later, broken };

// The socket to one processor. Only the sender's thread may call it, except for `abandon`.
class Connection {
 public:
    explicit Connection(std::string path) : path_(std::move(path)) {}

    bool is_open() const noexcept { return socket_.number() >= 0; }
    int descriptor() const noexcept { return socket_.number(); }
    bool open() noexcept;
    void close() noexcept { socket_.close(); }
    // In a forked child: drops the parent's connection without closing it for the parent.
    void abandon() noexcept { close(); }
    Sent send(Packet kind, const void* payload, std::size_t bytes, std::size_t records,
              std::uint64_t dropped) noexcept;
    // The payload of the next packet from the processor; `later` if there is none yet.
    Sent hear(std::string& payload);

 private:
    std::string path_;
    Descriptor socket_;
    std::uint64_t packet_ = 0;
};

}  // namespace stepscope
