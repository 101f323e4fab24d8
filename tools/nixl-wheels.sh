# NIXL's wheels, each in an environment of its own below target/nixl: to be sourced.

# Without its dependencies, most of which are for GPUs.
environment() { # version
    local venv=$PWD/target/nixl/$1
    [ -e "$venv/done" ] && return
    { [ -x "$venv/bin/pip" ] || python3 -m venv "$venv"; } &&
        timeout 300 "$venv/bin/pip" install -q --no-deps --disable-pip-version-check "nixl-cu12==$1" numpy &&
        touch "$venv/done"
}
