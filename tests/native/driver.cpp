// A process that is told what to do line by line (`driver.py`) and answers each with one.

#include <unistd.h>

#include <cstdio>
#include <string>

void obey_nccl(const std::string& order, const char* words);
void obey_sender(const std::string& order, const char* words);

int main() {
    char line[4096];
    while (std::fgets(line, sizeof line, stdin) != nullptr) {
        std::string order(line);
        order.pop_back();  // the end of the line
        const std::size_t blank = order.find(' ');
        const std::string words = blank == std::string::npos ? "" : order.substr(blank + 1);
        order.resize(blank == std::string::npos ? order.size() : blank);
        if (order == "exit") return 0;
        if (order == "_exit") _exit(0);
        if (order == "pid") std::printf("%d\n", getpid());
        obey_sender(order, words.c_str());
        obey_nccl(order, words.c_str());
        std::fflush(stdout);
    }
}
