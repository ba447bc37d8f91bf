// The budget of kernel recording, told what to do line by line: `took` and `on` by wall-clock time.
#include <cstdlib>
#include <iostream>
#include <string>

#include "../../native/cupti/budget.hpp"

int main(int, char** arguments) {
    stepscope::cupti::Budget budget(std::atof(arguments[1]));
    std::string word;
    std::int64_t wall_ns = 0, records = 0, recorded_ns = 0;
    while (std::cin >> word >> wall_ns) {
        if (word == "took") {
            std::cin >> records >> recorded_ns;
            budget.took(wall_ns, records, recorded_ns);
            std::cout << budget.parts() << '\n';
        } else {
            std::cout << budget.is_on(wall_ns) << ' ' << budget.until_change(wall_ns) << '\n';
        }
    }
}
