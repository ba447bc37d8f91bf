/* Shifts the wall clock of a process by LAB_CLOCK_NS, and nothing else: no other clock, no sleep.
 *
 * libfaketime shifts more, and sleeps of Python 3.11 do not return under it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

typedef int (*clock_function)(clockid_t, struct timespec*);

static const long long SECOND = 1000000000;

static long long now_ns(void) {
    static clock_function real;
    static long long shift;
    if (!real) {
        const char* text = getenv("LAB_CLOCK_NS");
        shift = text ? atoll(text) : 0;
        real = (clock_function)dlsym(RTLD_NEXT, "clock_gettime");
    }
    struct timespec now;
    real(CLOCK_REALTIME, &now);
    return now.tv_sec * SECOND + now.tv_nsec + shift;
}

int clock_gettime(clockid_t clock, struct timespec* now) {
    if (clock != CLOCK_REALTIME) {
        static clock_function real;
        if (!real) real = (clock_function)dlsym(RTLD_NEXT, "clock_gettime");
        return real(clock, now);
    }
    long long ns = now_ns();
    now->tv_sec = ns / SECOND;
    now->tv_nsec = ns % SECOND;
    return 0;
}

int gettimeofday(struct timeval* restrict now, void* restrict zone) {
    (void)zone;
    long long ns = now_ns();
    now->tv_sec = ns / SECOND;
    now->tv_usec = ns % SECOND / 1000;
    return 0;
}

time_t time(time_t* now) {
    time_t seconds = now_ns() / SECOND;
    if (now) *now = seconds;
    return seconds;
}
