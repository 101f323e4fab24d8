# Roots of Debian and Ubuntu in target/distros, made by debootstrap and kept for the next time; to be sourced.
PATH=$PATH:/usr/sbin:/sbin # where chroot and debootstrap live; not in everybody's PATH
debian=${WEFT_DEBIAN_MIRROR:-http://deb.debian.org/debian}
ubuntu=${WEFT_UBUNTU_MIRROR:-https://archive.ubuntu.com/ubuntu}
roots=$PWD/target/distros
mkdir -p "$roots"

may_chroot() { [ "$(id -u)" = 0 ] && unshare -m true 2>/dev/null; }

# Of another machine only what its packages have is there, and nothing of it can run without an emulator.
make_root() { # name, suite, packages (with commas), machine as Debian has it or ""
    local into=$roots/$1 deb mirror=("$debian") flags=()
    [ -e "$into/etc/debian_version" ] && return
    command -v debootstrap >/dev/null || { echo "debootstrap is missing: apt-get install debootstrap"; return 1; }
    case $2 in
        jammy | noble)
            mirror=("$ubuntu" gutsy) # the script of all Ubuntus, for a debootstrap that does not know this one
            # Debian has no keys of Ubuntu's; https is what vouches for it then.
            [ -e /usr/share/keyrings/ubuntu-archive-keyring.gpg ] || flags=(--no-check-gpg) ;;
    esac
    echo "Making $1 in $into ($into.log)." >&2
    rm -rf "$into.partial"
    debootstrap --variant=minbase --include="$3" ${4:+--foreign --arch="$4"} "${flags[@]}" "$2" "$into.partial" "${mirror[@]}" \
        >"$into.log" 2>&1 || { tail -n 3 "$into.log"; return 1; }
    if [ -n "${4:-}" ]; then
        for deb in "$into.partial"/var/cache/apt/archives/*.deb; do
            dpkg-deb --fsys-tarfile "$deb" | tar -C "$into.partial" -x --keep-directory-symlink || return
        done
    fi
    mv "$into.partial" "$into"
}

# Runs a command in a root that sees these folders of this system, too, where they are here. What is mounted is seen by
# nobody else, and ends with the command.
in_root() { # name, folders (with spaces), command...
    # shellcheck disable=SC2016 # for the other shell
    unshare -m bash -ec '
        for folder in /proc /sys /dev $2; do mkdir -p "$1$folder"; mount --rbind "$folder" "$1$folder"; done
        exec chroot "$1" "${@:3}"' in_root "$roots/$1" "$2" "${@:3}"
}
