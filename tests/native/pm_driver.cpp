// A process that samples as the processor's child does: frames to standard output, until standard
// input ends. `choose FOLDERS CHIP`, or `sample FOLDERS GPU INTERVAL_NS WINDOW_NS`.
#include <csignal>
#include <cstdlib>
#include <string>

extern "C" int stepscope_pm_sample(const char*, int, long long, long long, int, int);
extern "C" int stepscope_pm_choose(const char*, const char*, int);

int main(int count, char** words) {
    std::signal(SIGPIPE, SIG_IGN);
    if (count == 4) return stepscope_pm_choose(words[2], words[3], 1);
    return stepscope_pm_sample(words[2], std::atoi(words[3]), std::atoll(words[4]),
                               std::atoll(words[5]), 1, 0);
}
