// SPDX-License-Identifier: Apache-2.0 OR MIT
#include "files.hpp"

#include <cerrno>
#include <climits>
#include <fcntl.h>
#include <sstream>
#include <sys/stat.h>
#include <unistd.h>

namespace weft_nixl {
namespace {

const mode_t created_mode = 0644;

struct path_and_flags {
    std::string path;
    int flags = 0;
};

// `<ro|rw>[,direct][,sync][,noatime][,create]:<path>`. As in NIXL's own plugins, any other text names no path.
std::optional<path_and_flags> parse(const std::string &text)
{
    const std::size_t colon = text.find(':');
    if (colon == std::string::npos || colon + 1 == text.size())
        return std::nullopt;
    path_and_flags found;
    found.path = text.substr(colon + 1);
    std::istringstream modes(text.substr(0, colon));
    std::string mode;
    std::getline(modes, mode, ',');
    if (mode != "ro" && mode != "rw")
        return std::nullopt;
    found.flags = mode == "ro" ? O_RDONLY : O_RDWR;
    while (std::getline(modes, mode, ',')) {
        if (mode == "sync")
            found.flags |= O_SYNC;
        else if (mode == "noatime")
            found.flags |= O_NOATIME;
        else if (mode == "create")
            found.flags |= O_CREAT;
        else if (mode != "direct") // Weft uses O_DIRECT wherever it can
            return std::nullopt;
    }
    return found;
}

} // namespace

open_file::~open_file()
{
    if (fd_ >= 0)
        ::close(fd_);
}

bool open_file::open(const nixlBlobDesc &named)
{
    const auto found = parse(named.metaInfo);
    if (!found && named.devId > INT_MAX) { // no descriptor, and no path either
        errno = EBADF;
        return false;
    }
    fd_ = found ? ::open(found->path.c_str(), found->flags | O_CLOEXEC, created_mode)
                : fcntl(static_cast<int>(named.devId), F_DUPFD_CLOEXEC, 0);
    struct stat seen;
    if (fd_ < 0 || fstat(fd_, &seen) != 0)
        return false;
    inode_ = {seen.st_dev, seen.st_ino};
    return true;
}

bool file_ids::take(std::uint64_t id, const open_file &file)
{
    known &found = known_[id];
    if (found.ranges != 0 && found.inode != file.inode())
        return false;
    found.inode = file.inode();
    found.ranges++;
    return true;
}

void file_ids::give_back(std::uint64_t id)
{
    const auto found = known_.find(id);
    if (found != known_.end() && --found->second.ranges == 0)
        known_.erase(found);
}

nixl_query_resp_t query(const nixlBlobDesc &named)
{
    const auto found = parse(named.metaInfo);
    struct stat seen;
    if (stat((found ? found->path : named.metaInfo).c_str(), &seen) != 0)
        return std::nullopt;
    return nixl_b_params_t{{"size", std::to_string(seen.st_size)},
                           {"mode", std::to_string(seen.st_mode)},
                           {"mtime", std::to_string(seen.st_mtime)}};
}

} // namespace weft_nixl
