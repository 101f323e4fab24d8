# Cargo's list of what a library was made of, as a list of what OUTPUT was made of:
#     cmake -DFROM=.../libweft.d -DTO=... -DOUTPUT=... -P depfile.cmake
if(NOT EXISTS "${FROM}")
  message(FATAL_ERROR "cargo made no ${FROM}. If a .cargo/config.toml says build.target, set WEFT_RUST_TARGET to the same.")
endif()
file(READ "${FROM}" text)
# Which of the outputs it names (.so or .rlib) is chance: they are made of the same files.
if(NOT text MATCHES "libweft\\.[a-z]+: ([^\n]*)")
  message(FATAL_ERROR "${FROM} says nothing about libweft")
endif()
string(REPLACE " " "\\ " output "${OUTPUT}")
file(WRITE "${TO}" "${output}: ${CMAKE_MATCH_1}\n")
