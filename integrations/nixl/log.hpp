// The plugin's log: lines on stderr, as NIXL_LOG_LEVEL allows; without it, information and worse.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT
#ifndef WEFT_NIXL_LOG_HPP
#define WEFT_NIXL_LOG_HPP

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace weft_nixl {

enum class level { error, warning, information };

inline bool logs(level severity)
{
    static const char *const wanted = std::getenv("NIXL_LOG_LEVEL");
    if (!wanted || !std::strcmp(wanted, "INFO") || !std::strcmp(wanted, "DEBUG") || !std::strcmp(wanted, "TRACE"))
        return true;
    return severity == level::error || (severity == level::warning && !std::strcmp(wanted, "WARN"));
}

__attribute__((format(printf, 2, 3))) inline void log(level severity, const char *format, ...)
{
    if (!logs(severity))
        return;
    char line[1024];
    std::va_list values;
    va_start(values, format);
    std::vsnprintf(line, sizeof line, format, values);
    va_end(values);
    std::fprintf(stderr, "%c WEFT plugin: %s\n", "EWI"[static_cast<int>(severity)], line);
}

} // namespace weft_nixl
#endif
