#include "descriptor.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace stepscope {

void Descriptor::open(int fresh) noexcept {
    struct stat found{};
    if (::fstat(fresh, &found) != 0) return;
    device_ = found.st_dev;
    inode_ = found.st_ino;
    number_ = fresh;
}

int Descriptor::number() const noexcept {
    const int number = number_;
    struct stat found{};
    if (number < 0 || ::fstat(number, &found) != 0) return -1;
    return found.st_dev == device_ && found.st_ino == inode_ ? number : -1;
}

void Descriptor::close() noexcept {
    const int ours = number();
    number_ = -1;
    if (ours >= 0) ::close(ours);
}

int Wake::poll() noexcept {
    if (heard_.number() < 0 || said_.number() < 0) {
        close();
        int pair[2];
        if (::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0) {
            heard_.open(pair[0]);
            said_.open(pair[1]);
        }
    }
    return heard_.number();
}

void Wake::heard() noexcept {
    char rest[8];
    while (::recv(heard_.number(), rest, sizeof rest, MSG_DONTWAIT) > 0) {
    }
}

void Wake::set() noexcept { ::send(said_.number(), "!", 1, MSG_DONTWAIT | MSG_NOSIGNAL); }

void Wake::close() noexcept {
    heard_.close();
    said_.close();
}

}  // namespace stepscope
