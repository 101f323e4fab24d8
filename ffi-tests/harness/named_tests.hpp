// The tests of a C++ program: `--list` prints each with its fabrics, and a name runs that one.
#ifndef NAMED_TESTS_HPP
#define NAMED_TESTS_HPP

#include <cstddef>
#include <cstdio>
#include <exception>
#include <string_view>

struct named_test {
    const char *name;
    const char *where;
    void (*run)();
};

template <std::size_t N> int run_named(const named_test (&tests)[N], int argc, char **argv)
{
    const std::string_view wanted = argc == 2 ? argv[1] : "";
    for (const named_test &t : tests) {
        if (wanted == "--list")
            std::printf("%s %s\n", t.name, t.where);
        if (wanted != t.name)
            continue;
        try {
            t.run();
            return 0;
        } catch (const std::exception &e) {
            std::fprintf(stderr, "%s\n", e.what());
            return 1;
        }
    }
    return wanted == "--list" ? 0 : 2;
}

#endif
