// Hooks the operators of torch.distributed in torch's dispatcher, in C++.
//
// One boxed kernel runs before each operator `c10d::*` at the key BackendSelect, the last one
// before the backend. It notes the time, passes on the unchanged arguments, and returns what came
// back. It needs neither Python nor the GIL, which would cost a training thread 0.1 ms per
// operator. Its events are stored in a bounded buffer, which a thread of the session empties
// (`hooks/native_operators.py`).
//
// The end of an operator is found by a callback on the work's future, on the backend's thread. If
// the work has none (P2P and reduce-scatter of gloo), it is the return of its `wait`. Our failures
// must not reach the training: exceptions are caught here, and `faults.hpp` keeps what they say.
//
// Compiled against the headers of the installed torch (`build.py`), and only valid for that one.

#include <ATen/core/dispatch/Dispatcher.h>
#include <pthread.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "faults.hpp"
#include "last_words.hpp"
#include "recorder.hpp"
#include "shared.hpp"

namespace torch::autograd {
// engine.h, which declares these, takes seconds to compile
TORCH_API int get_current_graph_task_id();

struct TORCH_API Engine {
    static Engine& get_default_engine();
    void queue_callback(std::function<void()> callback);
};
}  // namespace torch::autograd

Shared stepscope_shared{};

namespace {

using namespace stepscope;

enum Flag : std::int32_t { kAsync = 1, kOnDevice = 2, kBucket = 4 };
constexpr int kNoGraphTask = -1;

bool on_training_thread() {
    return static_cast<std::int64_t>(pthread_self()) == stepscope_shared.training_thread.load();
}

// Positions of an operator's arguments, which Python has read from its schema.
struct Layout {
    int op, tensors_at, group_at, async_at, peer_at;
    bool moves_data;
};

const at::Tensor* first_tensor(const c10::IValue& value) {
    if (value.isTensor()) return &value.toTensor();
    if (!value.isList()) return nullptr;
    const auto items = value.toListRef();
    return items.empty() ? nullptr : first_tensor(items.front());
}

bool is_sparse(const at::Tensor& tensor) { return tensor.layout() != c10::kStrided; }

// Unknown of sparse tensors: members of one operator pass different numbers of values, and none of
// them says how much moves.
std::int64_t size_bytes(const c10::IValue& value) {
    if (value.isTensor()) {
        const at::Tensor& tensor = value.toTensor();
        return is_sparse(tensor) ? kUnknown : static_cast<std::int64_t>(tensor.nbytes());
    }
    std::int64_t total = 0;
    if (value.isList()) {
        for (const c10::IValue& item : value.toListRef()) {
            const std::int64_t size = size_bytes(item);
            if (size == kUnknown) return kUnknown;
            total += size;
        }
    }
    return total;
}

// Where the values of a tensor in host memory are; nowhere for a sparse one, or one without any.
const void* host_address(const at::Tensor* tensor) {
    const bool known = tensor != nullptr && tensor->device().is_cpu() && tensor->has_storage();
    return known ? tensor->const_data_ptr() : nullptr;
}

// Never destroyed: a backend's thread may still call when the process ends.
Recorder& recorder() {
    static Recorder& one = *new Recorder;
    return one;
}

int (*first_event)() = nullptr;
std::atomic<bool> first_event_told{false};

// The session's thread starts with the first operator, if this process is to be recorded.
void tell_of_first_event() {
    if (first_event_told.load(std::memory_order_relaxed) || first_event_told.exchange(true)) return;
    if (first_event != nullptr && first_event() == 0) stepscope_shared.enabled = 0;
}

// When the process forks, another thread may be holding our lock: a child records nothing then. One
// that was forked before any operator may be a rank itself, which the session decides.
void in_child() {
    if (first_event_told.load()) stepscope_shared.enabled = 0;
}

c10::DispatchKeySet below(c10::DispatchKeySet keys) {
    return keys &
           c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
}

class OperatorWatch final : public c10::OperatorKernel {
 public:
    OperatorWatch(Layout layout, std::size_t arguments) : layout_(layout), arguments_(arguments) {}

    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack) {
        Event event{};
        const void* output = nullptr;
        bool seen = false;
        if (stepscope_shared.enabled) {
            try {
                output = read(*stack, event);
                seen = true;
            } catch (...) {
                Faults::one().swallow("the arguments of an operator");
            }
        }
        op.redispatchBoxed(below(keys), stack);
        if (seen) {
            try {
                note(event, output, *stack);
            } catch (...) {
                Faults::one().swallow("an operator that was called");
            }
        }
    }

 private:
    const void* read(const torch::jit::Stack& stack, Event& event) {
        const c10::IValue* arguments = stack.data() + (stack.size() - arguments_);
        const c10::IValue& tensors = arguments[layout_.tensors_at];
        const at::Tensor* first = first_tensor(tensors);
        event.kind = kBegun;
        event.start_ns = now_ns();
        event.op = layout_.op;
        event.ordinal = stepscope_shared.ordinal;
        event.bytes = layout_.moves_data ? size_bytes(tensors) : 0;
        event.peer = layout_.peer_at < 0 ? -1 : arguments[layout_.peer_at].toInt();
        const auto group = arguments[layout_.group_at].toCustomClass<c10d::ProcessGroup>();
        event.group = recorder().group(group->getGroupName());
        if (layout_.async_at < 0 || arguments[layout_.async_at].toBool()) event.flags |= kAsync;
        if (first != nullptr && !first->device().is_cpu()) event.flags |= kOnDevice;
        return host_address(first_tensor(arguments[0]));
    }

    void note(Event& event, const void* output, const torch::jit::Stack& stack) {
        const bool bucket = is_bucket(event);
        if (bucket) stepscope_shared.buckets.fetch_add(1, std::memory_order_relaxed);
        if ((event.flags & kOnDevice) != 0) {
            // passed to a device: the host will not learn of its end
            recorder().begun(event, nullptr);
            tell_of_first_event();
            return;
        }
        const auto work = stack.back().toCustomClass<c10d::Work>();
        if (bucket) {
            event.flags |= kBucket;
            stepscope_shared.last_bucket_ns = event.start_ns;
            torch::autograd::Engine::get_default_engine().queue_callback(all_computed);
        }
        const std::int64_t serial = recorder().begun(event, work);
        tell_of_first_event();
        if (work && !follow(event, serial, *work)) {
            recorder().unfollowed(serial, Unfollowed{WeakWork(work), output, event.start_ns});
        }
    }

    static bool is_bucket(const Event& event) {
        return (event.flags & kAsync) != 0 &&
               torch::autograd::get_current_graph_task_id() != kNoGraphTask &&
               recorder().has_reducer(event.group);
    }

    // The engine runs its callbacks in order once a backward is computed. The reducer queues its
    // own, which waits, after its last bucket, so after all of ours. With several reducers the
    // first of our callbacks counts; after further buckets (of an outer backward) another one does.
    static void all_computed() {
        if (stepscope_shared.last_bucket_ns > stepscope_shared.computed_ns) {
            stepscope_shared.computed_ns = now_ns();
        }
    }

    static bool follow(const Event& event, std::int64_t serial, c10d::Work& work) {
        if (!recorder().has_future(event.op, event.group)) return false;
        c10::intrusive_ptr<c10::ivalue::Future> future;
        try {
            future = work.getFuture();
        } catch (const c10::Error&) {
            recorder().has_no_future(event.op, event.group);
            return false;
        }
        if (!future) return false;
        const bool bucket = (event.flags & kBucket) != 0;
        recorder().follows(1);
        future->addCallback([serial, bucket](c10::ivalue::Future& done) {
            if (bucket) {
                stepscope_shared.reduced_ns = now_ns();
                ++stepscope_shared.reduced;
            }
            try {
                recorder().ended(serial, done.hasError());
            } catch (...) {
                Faults::one().count("the end of an operator");
            }
            recorder().follows(-1);
        });
        return true;
    }

    const Layout layout_;
    const std::size_t arguments_;
};

// Functional collectives (DTensor, FSDP2) are waited for by an operator, in C++.
class WaitWatch final : public c10::OperatorKernel {
 public:
    void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                    torch::jit::Stack* stack) {
        const std::int64_t start_ns = now_ns();
        op.redispatchBoxed(below(keys), stack);
        if (!stepscope_shared.enabled) return;
        try {
            const std::int64_t end_ns = now_ns();
            if (on_training_thread()) stepscope_shared.blocked_ns += end_ns - start_ns;
            const void* output = host_address(first_tensor(stack->back()));
            if (output != nullptr) recorder().waited_for(output, start_ns, end_ns);
        } catch (...) {
            Faults::one().swallow("wait_tensor");
        }
    }
};

torch::Library& library(const char* name) {
    // never destroyed: our kernels must exist for as long as torch's dispatcher does
    return *new torch::Library(torch::Library::IMPL, name, c10::DispatchKey::BackendSelect,
                               __FILE__, __LINE__);
}

torch::Library& operators() {
    static torch::Library& one = library("c10d");
    return one;
}

}  // namespace

// All of these are called with the GIL held, and return at once.
extern "C" {

// Calls `on_first_event` at the first operator, on the thread that called it; 0 means: stop.
// `raises`: under test, our own exceptions end the training.
void stepscope_start(int (*on_first_event)(), int raises) {
    Faults::one().raise(raises != 0);
    first_event = on_first_event;
    pthread_atfork(nullptr, nullptr, in_child);
    stepscope_shared.enabled = 1;
}

// Registers a kernel before one operator of c10d. Positions are those of its arguments; -1: none.
int stepscope_watch(const char* name, int arguments, int op, int tensors_at, int group_at,
                    int async_at, int peer_at, int moves_data) {
    try {
        const Layout layout{op, tensors_at, group_at, async_at, peer_at, moves_data != 0};
        operators().impl(name,
                         torch::CppFunction::makeFromBoxedFunctor(std::make_unique<OperatorWatch>(
                             layout, static_cast<std::size_t>(arguments))));
        return 1;
    } catch (...) {
        return 0;
    }
}

int stepscope_watch_waits() {
    try {
        static torch::Library& functional = library("_c10d_functional");
        functional.impl("wait_tensor",
                        torch::CppFunction::makeFromBoxedFunctor(std::make_unique<WaitWatch>()));
        return 1;
    } catch (...) {
        return 0;
    }
}

void stepscope_watch_terminate() {
    // before the first operator there is no sender to wait for
    LastWords::one().watch([] { return first_event_told.load(); });
}

int stepscope_last_words(char* out, int room) { return LastWords::one().copy(out, room); }

// What was recorded before the process aborts has been sent.
void stepscope_last_words_sent() { LastWords::one().sent(); }

void stepscope_add_reducer(const char* group) { recorder().add_reducer(group); }

// A `Work.wait` returned, or raised.
void stepscope_waited(const void* work, std::int64_t start_ns, int finished) {
    const std::int64_t end_ns = now_ns();
    if (on_training_thread()) stepscope_shared.blocked_ns += end_ns - start_ns;
    if (stepscope_shared.enabled) recorder().waited(work, start_ns, end_ns, finished != 0);
}

void stepscope_look_after(std::int64_t older_than_ns) { recorder().look_after(older_than_ns); }

std::int64_t stepscope_open(std::int64_t since_ns) { return recorder().open(since_ns); }

std::int64_t stepscope_drain(Event* out, std::int64_t most) {
    return recorder().drain(out, static_cast<std::size_t>(most));
}

// Copies the place and the text of one of our faults, and how often it happened.
int stepscope_fault(int at, char* out, int room, std::int64_t* times) {
    return Faults::one().copy(at, out, room, times);
}

// Copies a group's name, cut to `room` bytes; returns its length.
int stepscope_group_name(int id, char* out, int room) {
    const std::string name = recorder().group_name(id);
    const std::size_t length = std::min(name.size(), static_cast<std::size_t>(room));
    std::memcpy(out, name.data(), length);
    return static_cast<int>(length);
}

}  // extern "C"
