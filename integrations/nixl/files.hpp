// Files as NIXL names them.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT
#ifndef WEFT_NIXL_FILES_HPP
#define WEFT_NIXL_FILES_HPP

#include "abi.hpp"

#include <map>
#include <sys/types.h>

namespace weft_nixl {

/** The file of a descriptor: `metaInfo` is its modes and path ("rw,create:/path"), or else `devId` the caller's fd. */
class open_file {
public:
    open_file() = default;
    open_file(const open_file &) = delete;
    open_file &operator=(const open_file &) = delete;
    ~open_file();

    /* * False: errno says why not. */
    bool open(const nixlBlobDesc &named);
    int fd() const { return fd_; }
    std::pair<dev_t, ino_t> inode() const { return inode_; }

private:
    int fd_ = -1;
    std::pair<dev_t, ino_t> inode_{};
};

/** Which file a `devId` stands for. NIXL finds memory by `devId` and offset, so two files of one would be confused. */
class file_ids {
public:
    /* * False: it stands for another file. */
    bool take(std::uint64_t id, const open_file &file);
    void give_back(std::uint64_t id);

private:
    struct known {
        std::pair<dev_t, ino_t> inode;
        std::size_t ranges = 0;
    };
    std::map<std::uint64_t, known> known_;
};

/** Of the file at a path (`metaInfo`, with modes or without): its size, mode and time. */
nixl_query_resp_t query(const nixlBlobDesc &named);

} // namespace weft_nixl
#endif
