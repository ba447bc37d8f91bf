#include "pipe.hpp"

#include <unistd.h>

#include <cerrno>

namespace stepscope::pm {

void Pipe::frame(std::uint32_t kind, const void* data, std::size_t bytes) {
    const std::uint32_t head[2] = {kind, static_cast<std::uint32_t>(bytes)};
    write_all(head, sizeof head);
    write_all(data, bytes);
}

void Pipe::write_all(const void* data, std::size_t bytes) {
    const char* at = static_cast<const char*>(data);
    while (bytes > 0 && !broken_) {
        const ssize_t written = write(descriptor_, at, bytes);
        if (written < 0) {
            broken_ = errno != EINTR;
            continue;
        }
        at += written;
        bytes -= static_cast<std::size_t>(written);
    }
}

}  // namespace stepscope::pm
