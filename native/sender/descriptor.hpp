// Sockets whose numbers the training script may close and give to something of its own. As in
// src/stepscope/collect/descriptors.py, where the reasons stand.
#pragma once

#include <atomic>
#include <cstdint>

namespace stepscope {

// A socket of ours, as long as its number still is. One thread opens and closes it, any may ask.
class Descriptor {
 public:
    // Remembers a fresh socket by its inode.
    void open(int fresh) noexcept;
    // The number, for one use; -1 if there is none, or if it is no longer ours.
    int number() const noexcept;
    // Closes the socket, or forgets the number if it is no longer ours.
    void close() noexcept;

 private:
    std::atomic<int> number_{-1};
    std::atomic<std::uint64_t> device_{0}, inode_{0};
};

// Wakes a thread that polls.
class Wake {
 public:
    // What the thread polls for input. Makes a new pair if the script has closed this one; -1 if no
    // descriptor is free.
    int poll() noexcept;
    // On the thread, once it is awake.
    void heard() noexcept;
    // From any thread. If the script has just closed the pair, the thread wakes a bit later.
    void set() noexcept;
    void close() noexcept;

 private:
    Descriptor heard_, said_;
};

}  // namespace stepscope
