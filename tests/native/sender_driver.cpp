// What a driver does through `native/sender`, as its owner asks: see `driver.cpp`.

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "sender/sender.hpp"
#include "sender/text.hpp"

namespace {

using namespace stepscope;

Sender* sender = nullptr;
std::string source;
std::mutex heard_mutex;
std::string heard;

void asked(std::string_view json) {
    const std::lock_guard<std::mutex> hold(heard_mutex);
    heard = json;
}

Record kernel(std::int64_t name, std::int64_t start, std::int64_t duration) {
    return {Kind::kernel, 0, UNKNOWN_ORDINAL, {name, 7, start, duration, UNKNOWN, 0, 0}};
}

std::uint64_t put_all(std::int64_t name, int count) {
    std::uint64_t put = 0;
    for (int at = 0; at < count; ++at) put += sender->put(kernel(name, now_ns(), at));
    return put;
}

void start(const char* words) {
    char name[32];
    std::size_t records = 0;
    std::sscanf(words, "%31s %zu", name, &records);
    source = name;
    SenderOptions options;
    options.source = source.c_str();
    options.queue_records = records;
    options.asked = asked;
    sender = Sender::start(options);
    std::puts(sender == nullptr ? "none" : "started");
}

void put_from_threads(const char* words) {
    int threads = 0, count = 0;
    std::sscanf(words, "%d %d", &threads, &count);
    std::atomic<std::uint64_t> put{0};
    std::vector<std::thread> all;
    for (int at = 0; at < threads; ++at) {
        all.emplace_back([&put, at, count] {
            put += put_all(sender->name("thread " + std::to_string(at)), count);
        });
    }
    for (std::thread& one : all) one.join();
    std::printf("%" PRIu64 " %" PRIu64 "\n", put.load(), sender->dropped());
}

void put_one(const char* words) {
    std::int64_t start_ns = 0, duration_ns = 0;
    int name = 0;
    std::sscanf(words, "%" SCNd64 " %" SCNd64 " %n", &start_ns, &duration_ns, &name);
    std::printf("%d\n", sender->put(kernel(sender->name(words + name), start_ns, duration_ns)));
}

void name_many(const char* words) {
    std::int64_t last = 0;
    const int count = std::atoi(words);
    for (int at = 0; at < count; ++at) last = sender->name("name " + std::to_string(at));
    std::printf("%" PRId64 "\n", last);
}

// A child that goes on as if nothing had happened, and exits as programs do.
void fork_child() {
    const pid_t child = fork();
    if (child == 0) {
        const bool is_put = sender->put(kernel(sender->name("in the child"), 1, 1));
        std::exit(is_put || !sender->is_silent());
    }
    int status = -1;
    waitpid(child, &status, 0);
    std::printf("%d\n", status);
}

// Pairs of sockets that took the numbers of the sender's descriptors.
std::vector<int> taken;

void take_descriptors() {
    for (int number = 3; number < 256; ++number) close(number);
    for (int at = 0; at < 20; ++at) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair) != 0) std::abort();
        for (const int end : pair) {
            taken.push_back(end);
            if (send(end, "theirs", 6, 0) != 6) std::abort();
        }
    }
    std::puts("taken");
}

// Whether each end still has just what the other has sent.
void tell_taken() {
    bool is_untouched = true;
    for (const int end : taken) {
        char data[8];
        is_untouched = is_untouched && recv(end, data, sizeof data, 0) == 6;
        is_untouched = is_untouched && recv(end, data, sizeof data, 0) == -1;
    }
    std::puts(is_untouched ? "untouched" : "touched");
}

void tell_heard() {
    const std::lock_guard<std::mutex> hold(heard_mutex);
    std::printf("%s|%" PRId64 "\n", heard.c_str(), number_in(heard, "events", UNKNOWN));
}

void stop() {
    sender->stop();
    std::puts("stopped");
}

}  // namespace

void obey_sender(const std::string& order, const char* words) {
    if (order == "start") start(words);
    if (order == "kernel") put_one(words);
    if (order == "kernels") put_from_threads(words);
    if (order == "names") name_many(words);
    if (order == "fork") fork_child();
    if (order == "take") take_descriptors();
    if (order == "taken") tell_taken();
    if (order == "heard") tell_heard();
    if (order == "now") std::printf("%" PRId64 "\n", now_ns());
    if (order == "stop") stop();
}
