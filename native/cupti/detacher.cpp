#include "detacher.hpp"

#include <poll.h>

#include <cstring>

namespace stepscope::cupti {
namespace {

constexpr std::uint32_t OF_DRIVER = 1, OF_RUNTIME = 2, AT_END = 1;
// CUDA 12.6: before, detaching crashed processes that use CUDA graphs (PyTorch's pull 146604).
constexpr std::uint32_t DETACHES_SAFELY = 24;
constexpr int DETACHING_TURNS = 1000, DETACHING_TURN_MS = 1;

}  // namespace

bool Detacher::can(const Library& library) {
    return library.version >= DETACHES_SAFELY && library.subscribe != nullptr &&
           library.unsubscribe != nullptr && library.enable_domain != nullptr &&
           library.finalize != nullptr;
}

bool Detacher::request() noexcept {
    if (library_->subscribe(&subscriber_, at_call, this) != SUCCESS) return false;
    state_.store(State::requested, std::memory_order_release);
    const bool subscribed = library_->enable_domain(1, subscriber_, OF_RUNTIME) == SUCCESS &&
                            library_->enable_domain(1, subscriber_, OF_DRIVER) == SUCCESS;
    if (!subscribed) take_back();
    return is_away();
}

void Detacher::take_back() noexcept {
    State expected = State::requested;
    if (state_.compare_exchange_strong(expected, State::attached)) {
        library_->unsubscribe(subscriber_);
        return;
    }
    for (int turn = 0; state_ == State::detaching && turn < DETACHING_TURNS; ++turn)
        ::poll(nullptr, 0, DETACHING_TURN_MS);
    state_.store(State::attached, std::memory_order_release);
}

// On a thread of the training, inside a call of CUDA. `data` begins with where in it.
void Detacher::at_call(void* self, std::uint32_t domain, std::uint32_t, const void* data) {
    std::uint32_t site = 0;
    std::memcpy(&site, data, sizeof site);
    if ((domain == OF_DRIVER || domain == OF_RUNTIME) && site == AT_END)
        static_cast<Detacher*>(self)->detach();
}

void Detacher::detach() noexcept {
    State expected = State::requested;
    if (!state_.compare_exchange_strong(expected, State::detaching)) return;
    const bool done = library_->finalize() == SUCCESS;  // which forgets the subscriber
    state_.store(done ? State::detached : State::attached, std::memory_order_release);
}

}  // namespace stepscope::cupti
