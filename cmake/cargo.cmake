# Finds cargo, and what to tell it: WEFT_CARGO, WEFT_CARGO_ENVIRONMENT, WEFT_CARGO_ARGUMENTS.

set(WEFT_CARGO_FLAGS "" CACHE STRING "Further flags for cargo, as --offline")
set(WEFT_CARGO_PROFILE "" CACHE STRING "Cargo's profile; empty: dev for Debug, release for everything else")
set(WEFT_CARGO_TARGET_DIR "${CMAKE_CURRENT_BINARY_DIR}/cargo" CACHE PATH "Where cargo builds")
set(_machine "")
if(CMAKE_CROSSCOMPILING)
  set(_machine "${CMAKE_SYSTEM_PROCESSOR}-unknown-linux-gnu")
endif()
set(WEFT_RUST_TARGET "${_machine}" CACHE STRING "Rust's name of the machine to build for; empty: this one")

find_program(WEFT_CARGO cargo PATHS "$ENV{CARGO_HOME}/bin" "$ENV{HOME}/.cargo/bin" DOC "Rust's cargo")

file(STRINGS "${PROJECT_SOURCE_DIR}/Cargo.toml" _wanted REGEX "^rust-version = \"")
string(REGEX MATCH "[0-9.]+" _wanted "${_wanted}")
if(NOT WEFT_CARGO)
  message(FATAL_ERROR "Weft is written in Rust, and cargo was not found. Install Rust ${_wanted} or newer "
    "(https://rustup.rs), or set WEFT_CARGO to cargo's path.")
endif()
execute_process(COMMAND "${WEFT_CARGO}" --version WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
  OUTPUT_VARIABLE _said ERROR_VARIABLE _said RESULT_VARIABLE _failed)
if(_failed OR NOT _said MATCHES "cargo ([0-9]+\\.[0-9]+\\.[0-9]+)")
  message(FATAL_ERROR "Weft needs cargo, and ${WEFT_CARGO} --version does not work: ${_said}")
endif()
if(CMAKE_MATCH_1 VERSION_LESS _wanted)
  message(FATAL_ERROR "Weft needs Rust ${_wanted} or newer, and ${WEFT_CARGO} is ${CMAKE_MATCH_1}: rustup update, "
    "or set WEFT_CARGO to a newer one.")
endif()

# A default target of the caller's environment would move what cargo makes to another folder.
set(WEFT_CARGO_ENVIRONMENT --unset=CARGO_BUILD_TARGET)
if(WEFT_RUST_TARGET)
  string(TOUPPER "CARGO_TARGET_${WEFT_RUST_TARGET}_LINKER" _linker)
  string(REPLACE "-" "_" _linker "${_linker}")
  list(APPEND WEFT_CARGO_ENVIRONMENT "${_linker}=${CMAKE_C_COMPILER}")
endif()

separate_arguments(_flags UNIX_COMMAND "${WEFT_CARGO_FLAGS}")
set(WEFT_CARGO_ARGUMENTS build --package weft --lib --locked --target-dir "${WEFT_CARGO_TARGET_DIR}" ${_flags})
if(WEFT_RUST_TARGET)
  list(APPEND WEFT_CARGO_ARGUMENTS --target "${WEFT_RUST_TARGET}")
endif()
