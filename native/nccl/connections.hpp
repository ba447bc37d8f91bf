// Outstanding network requests by connection: who sends to whom in a communicator.
//
// VenusTrace (Jiao et al., 2025, section 3.2.2) counts work requests up when they are posted and
// down when they complete. NCCL does not report work requests to its plugins, but the steps of its
// proxies: a sending step is posted (`SendWait`) and completes (it stops). One step may be several
// requests. Receiving steps are not counted, because they wait for other ranks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace stepscope {
class Sender;
}

namespace stepscope::nccl {

class Connections {
 public:
    struct Connection {
        std::atomic<std::uint64_t> key{0};
        std::atomic<std::int64_t> posted{0}, completed{0}, bytes{0};
        std::int64_t posted_told = 0, completed_told = 0, bytes_told = 0;  // used by `tell` only
    };

    explicit Connections(std::size_t size);

    // The connection from us to a rank of a communicator; null if there are too many.
    Connection* find(std::int64_t communicator, int peer) noexcept;
    // Queues a record for each connection that was active since the last call, or has outstanding
    // requests.
    void tell(Sender& sender, std::int64_t now_ns) noexcept;

 private:
    bool tell_of(Connection& one, Sender& sender, std::int64_t now_ns) noexcept;

    const std::size_t size_;
    std::unique_ptr<Connection[]> all_;
    std::int64_t told_ns_;
};

}  // namespace stepscope::nccl
