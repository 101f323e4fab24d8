// weft::memory frees its bytes only when nothing can write to them. This program replaces the two library functions
// that decide about that.
#include "weft.hpp"

#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

std::vector<weft_status> deregistered;
weft_status shut_down;
std::size_t calls;

struct answer {
    std::vector<weft_status> deregister; // the results of consecutive calls; the last one repeats
    weft_status shutdown;
    bool freed; // otherwise the program ends
    std::size_t calls;
};

std::vector<weft_status> busy_for(std::size_t times, weft_status then)
{
    std::vector<weft_status> results(times, WEFT_ERR_BUSY);
    results.push_back(then);
    return results;
}

// How a child process ended that destroys a memory.
int destroyed(const answer &given)
{
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
        deregistered = given.deregister;
        shut_down = given.shutdown;
        std::set_terminate([] { _exit(42); });
        {
            weft::memory memory(reinterpret_cast<weft_endpoint *>(8), reinterpret_cast<weft_memory *>(16));
        }
        _exit(calls == given.calls ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool only_what_is_given_back_is_freed()
{
    const answer answers[] = {
        {{WEFT_OK}, WEFT_ERR_INTERNAL, true, 1},
        {{WEFT_ERR_HANDLE}, WEFT_ERR_INTERNAL, true, 1},
        {{WEFT_ERR_FORKED}, WEFT_ERR_INTERNAL, true, 1},
        // What ended early is put away soon; only what stays in use ends the endpoint.
        {{WEFT_ERR_BUSY, WEFT_OK}, WEFT_ERR_INTERNAL, true, 2},
        {busy_for(30, WEFT_OK), WEFT_OK, true, 31},
        {{WEFT_ERR_TIMED_OUT, WEFT_OK}, WEFT_OK, true, 2},
        {{WEFT_ERR_FABRIC, WEFT_ERR_HANDLE}, WEFT_OK, true, 2},
        {{WEFT_ERR_INTERNAL, WEFT_OK}, WEFT_OK, true, 2},
        {busy_for(30, WEFT_OK), WEFT_ERR_TIMED_OUT, false, 30},
        {{WEFT_ERR_TIMED_OUT}, WEFT_ERR_TIMED_OUT, false, 1},
        {{WEFT_ERR_BUSY}, WEFT_OK, false, 60},
        {{WEFT_ERR_FABRIC, WEFT_ERR_TIMED_OUT}, WEFT_OK, false, 2},
        {{-12345, -12345}, WEFT_OK, false, 2},
    };
    for (const answer &given : answers) {
        const int ended = destroyed(given);
        if (ended != (given.freed ? 0 : 42)) {
            std::fprintf(stderr, "deregister says %s, shutdown %s: the child ended with %d\n",
                         weft_status_name(given.deregister[0]), weft_status_name(given.shutdown), ended);
            return false;
        }
    }
    return true;
}

} // namespace

extern "C" weft_status weft_memory_deregister(weft_memory *)
{
    const std::size_t last = deregistered.size() - 1;
    const std::size_t call = calls++;
    return deregistered[call < last ? call : last];
}

extern "C" weft_status weft_endpoint_shutdown(weft_endpoint *, std::uint64_t)
{
    return shut_down;
}

int main(int argc, char **argv)
{
    if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
        std::puts("only_what_is_given_back_is_freed once");
        return 0;
    }
    return only_what_is_given_back_is_freed() ? 0 : 1;
}
