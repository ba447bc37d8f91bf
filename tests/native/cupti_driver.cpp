// A training process that uses CUDA, as far as CUPTI's injector sees one, told what to do line by
// line (`driver.py`). It says of the mock what it runs on its GPU.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

void* mock = nullptr;
void* injector = nullptr;
std::deque<std::string> kept;  // a GPU's names outlive its kernels, and stay where they are
std::uint8_t others_buffer[1 << 20];

template <class Function, class... Arguments>
auto call(void* library, const char* name, Arguments... arguments) {
    auto* function = reinterpret_cast<Function*>(library ? dlsym(library, name) : nullptr);
    if (function == nullptr) {
        std::cerr << "no " << name << '\n';
        std::exit(2);
    }
    return function(arguments...);
}

void inject() {
    mock = dlopen("libcupti.so.13", RTLD_NOW);
    injector = dlopen(std::getenv("CUDA_INJECTION64_PATH"), RTLD_NOW);
    std::cout << call<int()>(injector, "InitializeInjection");
}

void run_kernels(const char* name, int count, std::int64_t duration_ns) {
    using Kernel = void(const char*, std::uint32_t, std::int64_t);
    auto* run = reinterpret_cast<Kernel*>(dlsym(mock, "mock_kernel"));
    for (int at = 0; at < count; ++at) run(name, 7, duration_ns);
}

void kernels(std::istream& words) {
    int threads = 0, count = 0;
    std::int64_t duration_ns = 0;
    std::string name;
    words >> name >> threads >> count >> duration_ns;
    kept.push_back(name);
    const char* text = kept.back().c_str();
    std::vector<std::thread> all;
    for (int at = 1; at < threads; ++at) all.emplace_back(run_kernels, text, count, duration_ns);
    run_kernels(text, count, duration_ns);
    for (std::thread& one : all) one.join();
    std::cout << threads * count;
}

// As torch.profiler's hook does, before CUDA has loaded the library or after.
void pause(const char* call_name) {
    injector = dlopen(std::getenv("CUDA_INJECTION64_PATH"), RTLD_NOW);
    call<void()>(injector, call_name);
}

// Becomes another program of the same process id; says so first, so that no order of the next one
// is read here.
void execute() {
    std::cout << "next" << std::endl;
    char program[] = "/proc/self/exe";
    char* words[] = {program, nullptr};
    execv(program, words);
}

// Another profiler: takes CUPTI over, records kernels of its own, leaves with all switched off.
void others_request(std::uint8_t** buffer, std::size_t* size, std::size_t* most) {
    *buffer = others_buffer;
    *size = sizeof others_buffer;
    *most = 0;
}
std::size_t others_bytes = 0;
bool strange_buffer = false;
void others_completed(void*, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
    if (buffer != others_buffer) strange_buffer = true;
    others_bytes += valid;
}

void other_profiler(std::istream& words) {
    int count = 0;
    words >> count;
    constexpr std::uint32_t KERNEL = 10;
    call<void()>(injector, "stepscope_cupti_pause");
    call<int(void (*)(std::uint8_t**, std::size_t*, std::size_t*),
             void (*)(void*, std::uint32_t, std::uint8_t*, std::size_t, std::size_t))>(
        mock, "cuptiActivityRegisterCallbacks", others_request, others_completed);
    call<int(std::uint32_t)>(mock, "cuptiActivityEnable", KERNEL);
    run_kernels("others", count, 1000);
    call<int(std::uint32_t)>(mock, "cuptiActivityFlushAll", 1u);
    call<int(std::uint32_t)>(mock, "cuptiActivityDisable", KERNEL);
    call<void()>(injector, "stepscope_cupti_resume");
    std::cout << others_bytes << ' ' << strange_buffer;
}

void fork_child(std::istream& words) {
    int count = 0;
    words >> count;
    const pid_t child = fork();
    if (child == 0) {
        run_kernels("child", count, 1000);
        std::exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    std::cout << status;
}

void others(std::istream& words) {
    int copies = 0, sets = 0, graphs = 0, waits = 0;
    words >> copies >> sets >> graphs >> waits;
    for (int at = 0; at < copies; ++at)
        call<void(std::uint8_t, std::uint8_t, std::uint8_t)>(mock, "mock_copy", std::uint8_t{1},
                                                             std::uint8_t{2}, std::uint8_t{3});
    for (int at = 0; at < sets; ++at) call<void(std::uint16_t)>(mock, "mock_set", std::uint16_t{3});
    for (int at = 0; at < graphs; ++at) call<void(std::uint32_t)>(mock, "mock_graph", 4u);
    for (int at = 0; at < waits; ++at)
        call<void(std::uint32_t, std::int64_t)>(mock, "mock_synchronization", 3u,
                                                std::int64_t{1000});
    std::cout << copies + sets + graphs;
}

void untimed(std::istream& words) {
    int never = 0, begun = 0;
    words >> never >> begun;
    for (int at = 0; at < never + begun; ++at)
        call<void(const char*, bool)>(mock, "mock_untimed_kernel", "untimed", at >= never);
    std::cout << never + begun;
}

// Has all that is complete handed over at once, and not within a second.
void flush() {
    call<void()>(injector, "stepscope_cupti_pause");
    call<void()>(injector, "stepscope_cupti_resume");
}

void hold(std::istream& words) {
    bool wanted = false;
    words >> wanted;
    call<void(bool)>(mock, "mock_hold", wanted);
}

void in_graph(std::istream& words) {
    std::uint32_t id = 0;
    words >> id;
    call<void(std::uint32_t)>(mock, "mock_graph_of_kernels", id);
}

void obey(const std::string& line) {
    std::istringstream words(line);
    std::string order;
    words >> order;
    if (order == "inject") inject();
    if (order == "kernels") kernels(words);
    if (order == "others") others(words);
    if (order == "untimed") untimed(words);
    if (order == "profiler") other_profiler(words);
    if (order == "fork") fork_child(words);
    if (order == "pause") pause("stepscope_cupti_pause");
    if (order == "resume") pause("stepscope_cupti_resume");
    if (order == "exec") execute();
    if (order == "flush") flush();
    if (order == "hold") hold(words);
    if (order == "in-graph") in_graph(words);
    if (order == "finalized") std::cout << call<int()>(mock, "mock_finalized");
    if (order == "ticks") call<void()>(mock, "mock_use_ticks");
    if (order == "_exit") _exit(0);
    if (order == "exit") std::exit(0);
    std::cout << std::endl;
}

}  // namespace

int main() {
    for (std::string line; std::getline(std::cin, line);) obey(line);
}
