// SPDX-License-Identifier: Apache-2.0 OR MIT
#include "parameters.hpp"
#include "log.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>

namespace weft_nixl {
namespace {

enum class kind { text, number, idle, yes_or_no };
struct parameter {
    const char *name;
    kind form;
};
const parameter all[] = {
    {"fabric", kind::text},         {"rails", kind::text},          {"rail_count", kind::number},
    {"min_rails", kind::number},    {"workers", kind::number},      {"idle", kind::idle},
    {"timeout_ms", kind::number},   {"connect_timeout_ms", kind::number}, {"liveness_ms", kind::number},
    {"secret_file", kind::text},    {"encrypt", kind::yes_or_no},   {"tcp_ports", kind::text},
    {"tcp_address", kind::text},    {"tcp_streams", kind::number},
};
const std::uint64_t default_timeout_ms = 30'000, most_ms = 24 * 3600 * 1000;

bool is_number(const std::string &text)
{
    return text.size() <= 9 && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
}

const char *wanted(kind form, const std::string &value)
{
    switch (form) {
    case kind::text: return nullptr;
    case kind::number: return is_number(value) ? nullptr : "a number";
    case kind::yes_or_no: return value == "0" || value == "1" ? nullptr : "0 or 1";
    case kind::idle: break;
    }
    return value == "adaptive" || value == "spin" || value == "sleep" ? nullptr : "adaptive, spin or sleep";
}

std::string variable_of(std::string name)
{
    for (char &c : name)
        c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    return "WEFT_NIXL_" + name;
}

} // namespace

parameters::parameters(const nixl_b_params_t &given) : values_(given)
{
    for (const auto &[name, value] : given) {
        const auto known = std::find_if(std::begin(all), std::end(all), [&](auto &p) { return name == p.name; });
        if (known == std::end(all)) {
            std::string names;
            for (const parameter &p : all)
                names += std::string(names.empty() ? "" : ", ") + p.name;
            log(level::error, "no parameter is called \"%s\"; there are %s", name.c_str(), names.c_str());
            valid_ = false;
        }
    }
    for (const parameter &p : all) {
        std::string &value = values_[p.name];
        const char *variable = std::getenv(variable_of(p.name).c_str());
        if (value.empty() && variable)
            value = variable;
        const char *want = value.empty() ? nullptr : wanted(p.form, value);
        if (want) {
            log(level::error, "the parameter \"%s\" is \"%s\"; it must be %s", p.name, value.c_str(), want);
            valid_ = false;
        }
    }
    if (timeout_ns() > most_ms * 1'000'000) {
        log(level::error, "the parameter \"timeout_ms\" is more than 24 hours");
        valid_ = false;
    }
}

const char *parameters::text(const char *name) const
{
    const std::string &value = values_.at(name);
    return value.empty() ? nullptr : value.c_str();
}

// Not by strtoull, which newer headers make a symbol of glibc 2.38.
std::uint64_t parameters::number(const char *name) const
{
    const std::string &value = values_.at(name);
    std::uint64_t number = 0;
    std::from_chars(value.data(), value.data() + value.size(), number);
    return number;
}

std::uint64_t parameters::timeout_ns() const
{
    const std::uint64_t given = number("timeout_ms");
    return (given ? given : default_timeout_ms) * 1'000'000;
}

weft_endpoint_config parameters::endpoint() const
{
    weft_endpoint_config config = WEFT_ENDPOINT_CONFIG_INIT;
    config.fabric = text("fabric");
    config.rails = text("rails");
    config.rail_count = static_cast<std::uint32_t>(number("rail_count"));
    config.min_rails = static_cast<std::uint32_t>(number("min_rails"));
    config.workers = static_cast<std::uint32_t>(number("workers"));
    const std::string &idle = values_.at("idle");
    config.idle = idle == "spin" ? WEFT_IDLE_SPIN : idle == "sleep" ? WEFT_IDLE_SLEEP : WEFT_IDLE_ADAPTIVE;
    config.timeout_ns = timeout_ns();
    config.connect_timeout_ns = number("connect_timeout_ms") * 1'000'000;
    config.liveness_ns = number("liveness_ms") * 1'000'000;
    config.secret_file = text("secret_file");
    config.encrypt = static_cast<std::uint32_t>(number("encrypt"));
    config.tcp_ports = text("tcp_ports");
    config.tcp_address = text("tcp_address");
    config.tcp_streams = static_cast<std::uint32_t>(number("tcp_streams"));
    return config;
}

nixl_b_params_t parameters::names()
{
    nixl_b_params_t names;
    for (const parameter &p : all)
        names[p.name] = "";
    return names;
}

} // namespace weft_nixl
