#include "connection.hpp"

#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace stepscope {
namespace {

constexpr std::uint32_t MAGIC = 0x70635353;  // "SScp"
constexpr std::uint16_t VERSION = 1;
// A request of the processor is one line.
constexpr std::size_t MOST_HEARD_BYTES = 4096;

// Whether this user or root listens there, as in src/stepscope/wire/peer.py.
bool is_own_users(int connected) {
    ucred peer{};
    socklen_t size = sizeof peer;
    if (::getsockopt(connected, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
    return peer.uid == geteuid() || peer.uid == 0;
}

bool try_later() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

bool Connection::open() noexcept {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path_.empty() || path_.size() >= sizeof address.sun_path) return false;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    const int fresh = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fresh < 0) return false;
    const bool is_connected =
        ::connect(fresh, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    if (!is_connected || !is_own_users(fresh)) {
        ::close(fresh);
        return false;
    }
    packet_ = 0;
    socket_.open(fresh);
    return true;
}

Sent Connection::send(Packet kind, const void* payload, std::size_t bytes, std::size_t records,
                      std::uint64_t dropped) noexcept {
    Header header{MAGIC,
                  VERSION,
                  kind,
                  static_cast<std::uint32_t>(records),
                  static_cast<std::uint32_t>(std::min<std::uint64_t>(dropped, 0xFFFFFFFF)),
                  packet_,
                  static_cast<std::uint64_t>(getpid())};
    iovec parts[2] = {{&header, sizeof header}, {const_cast<void*>(payload), bytes}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    // without MSG_NOSIGNAL, a dead processor would end the training by SIGPIPE
    if (::sendmsg(socket_.number(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
        ++packet_;
        return Sent::yes;
    }
    return try_later() ? Sent::later : Sent::broken;
}

Sent Connection::hear(std::string& payload) {
    char data[sizeof(Header) + MOST_HEARD_BYTES];
    const ssize_t size = ::recv(socket_.number(), data, sizeof data, MSG_DONTWAIT);
    if (size < 0) return try_later() ? Sent::later : Sent::broken;
    if (size == 0) return Sent::broken;
    Header header{};
    payload.clear();
    if (static_cast<std::size_t>(size) < sizeof header) return Sent::yes;
    std::memcpy(&header, data, sizeof header);
    const bool is_ours = header.magic == MAGIC && header.version == VERSION;
    if (is_ours && header.kind == Packet::control) {
        payload.assign(data + sizeof header, static_cast<std::size_t>(size) - sizeof header);
    }
    return Sent::yes;
}

}  // namespace stepscope
