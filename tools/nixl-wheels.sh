# NIXL's wheels, each in an environment of its own below target/nixl: to be sourced.

# Without its dependencies, most of which are for GPUs.
environment() { # version
    local venv=$PWD/target/nixl/$1
    [ -e "$venv/done" ] && return
    { [ -x "$venv/bin/pip" ] || python3 -m venv "$venv"; } &&
        timeout 300 "$venv/bin/pip" install -q --no-deps --disable-pip-version-check "nixl-cu12==$1" numpy &&
        touch "$venv/done"
}

# Mooncake's transfer engine beside it, of the wheel without CUDA.
mooncake() { # version of NIXL
    local venv=$PWD/target/nixl/$1
    "$venv/bin/python" -c 'import mooncake.engine' 2>/dev/null ||
        timeout 300 "$venv/bin/pip" install -q --no-deps --disable-pip-version-check mooncake-transfer-engine-non-cuda==0.3.13.post1
}

# Of the wheel's 120 MB, what NIXL and its UCX backend load to reach memory of GPUs, for the Python of another machine.
slim_wheel() { # version, version of Python, folder
    local venv=$PWD/target/nixl/$1 wheels package
    environment "$1" || return
    wheels=$(mktemp -d)
    for package in "nixl-cu12==$1" nvidia-cuda-runtime-cu12==12.9.79; do
        timeout 300 "$venv/bin/pip" download -q --no-deps --disable-pip-version-check --only-binary=:all: --python-version "$2" \
            --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 -d "$wheels" "$package" || return
    done
    python3 tools/nixl-slim.py "$wheels"/nixl_cu12*.whl "$3" &&
        python3 -m zipfile -e "$wheels"/nvidia_cuda_runtime*.whl "$wheels/cuda" &&
        cp "$wheels"/cuda/nvidia/cuda_runtime/lib/libcudart.so.12 "$3/nixl_cu12.libs/"
    rm -rf "$wheels"
}
