# Has cargo build libweft.so, and makes the target weft::weft of it.
# Cargo says (in libweft.d) which files the library was made of: it runs again when one of them changed, and only then.

set(WEFT_SONAME libweft.so.0)
set(WEFT_FILE "libweft.so.${PROJECT_VERSION}")
get_property(_several GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
set(WEFT_OUTPUT_DIR "${CMAKE_CURRENT_BINARY_DIR}/lib$<$<BOOL:${_several}>:/$<CONFIG>>")

# Cargo's profile "dev" is in the folder "debug".
set(_profile "${WEFT_CARGO_PROFILE}")
if(NOT _profile)
  set(_profile "$<IF:$<CONFIG:Debug>,dev,release>")
endif()
set(_made "${WEFT_CARGO_TARGET_DIR}/")
if(WEFT_RUST_TARGET)
  string(APPEND _made "${WEFT_RUST_TARGET}/")
endif()
string(APPEND _made "$<IF:$<STREQUAL:${_profile},dev>,debug,${_profile}>")

# CMake before 4 writes makefiles that do not work for a DEPFILE in a folder with a space: there it is a list of the files.
set(_inputs DEPFILE "${WEFT_OUTPUT_DIR}/libweft.d")
file(RELATIVE_PATH _folder "${CMAKE_BINARY_DIR}" "${CMAKE_CURRENT_BINARY_DIR}")
if(CMAKE_GENERATOR MATCHES "Makefiles" AND _folder MATCHES " ")
  file(GLOB_RECURSE _inputs CONFIGURE_DEPENDS build.rs "src/*" "include/*" "libfabric-sys/*")
  list(PREPEND _inputs DEPENDS)
endif()

# Copied, since cargo would take a change of its own file's time for a change of the library.
add_custom_command(
  OUTPUT "${WEFT_OUTPUT_DIR}/${WEFT_FILE}"
  COMMAND "${CMAKE_COMMAND}" -E env ${WEFT_CARGO_ENVIRONMENT}
    "${WEFT_CARGO}" ${WEFT_CARGO_ARGUMENTS} --profile "${_profile}"
  COMMAND "${CMAKE_COMMAND}" -E make_directory "${WEFT_OUTPUT_DIR}"
  COMMAND "${CMAKE_COMMAND}" "-DFROM=${_made}/libweft.d" "-DTO=${WEFT_OUTPUT_DIR}/libweft.d"
    "-DOUTPUT=${WEFT_OUTPUT_DIR}/${WEFT_FILE}" -P "${CMAKE_CURRENT_LIST_DIR}/depfile.cmake"
  COMMAND "${CMAKE_COMMAND}" -E copy "${_made}/libweft.so" "${WEFT_OUTPUT_DIR}/${WEFT_FILE}"
  COMMAND "${CMAKE_COMMAND}" -E create_symlink "${WEFT_FILE}" "${WEFT_OUTPUT_DIR}/${WEFT_SONAME}"
  COMMAND "${CMAKE_COMMAND}" -E create_symlink "${WEFT_SONAME}" "${WEFT_OUTPUT_DIR}/libweft.so"
  ${_inputs}
  DEPENDS Cargo.toml Cargo.lock libfabric-sys/Cargo.toml "${CMAKE_CURRENT_LIST_DIR}/depfile.cmake"
  WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" # cargo looks for .cargo/config.toml from there
  COMMENT "Building Weft with cargo"
  USES_TERMINAL VERBATIM)
add_custom_target(weft-library ALL DEPENDS "${WEFT_OUTPUT_DIR}/${WEFT_FILE}")

add_library(weft::weft SHARED IMPORTED GLOBAL)
set_target_properties(weft::weft PROPERTIES WEFT_VERSION "${PROJECT_VERSION}")
add_dependencies(weft::weft weft-library)
target_include_directories(weft::weft INTERFACE "${PROJECT_SOURCE_DIR}/include")
if(_several)
  set_target_properties(weft::weft PROPERTIES IMPORTED_CONFIGURATIONS "${CMAKE_CONFIGURATION_TYPES}")
  foreach(_config IN LISTS CMAKE_CONFIGURATION_TYPES)
    string(TOUPPER "${_config}" _upper)
    set_target_properties(weft::weft PROPERTIES
      IMPORTED_LOCATION_${_upper} "${CMAKE_CURRENT_BINARY_DIR}/lib/${_config}/${WEFT_FILE}"
      IMPORTED_SONAME_${_upper} ${WEFT_SONAME})
  endforeach()
else()
  set_target_properties(weft::weft PROPERTIES
    IMPORTED_LOCATION "${CMAKE_CURRENT_BINARY_DIR}/lib/${WEFT_FILE}" IMPORTED_SONAME ${WEFT_SONAME})
endif()
