# cmake --toolchain cmake/aarch64-linux-gnu.cmake: for 64-bit Arm, with Debian's gcc-aarch64-linux-gnu and
# rustup target add aarch64-unknown-linux-gnu. Tests run under qemu-user, if it is there.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
