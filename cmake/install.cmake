# Header, library, CMake package and pkg-config file. Nothing that is installed knows where: it can be moved.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(_package "${CMAKE_INSTALL_LIBDIR}/cmake/weft")
set(_pc "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/weft-config.cmake.in" weft-config.cmake
  INSTALL_DESTINATION "${_package}" PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
# One soname, one promise: programs of 0.2 run with every 0.x.
write_basic_package_version_file(weft-config-version.cmake COMPATIBILITY SameMajorVersion)

file(RELATIVE_PATH WEFT_PC_TO_PREFIX "${CMAKE_INSTALL_PREFIX}/${_pc}" "${CMAKE_INSTALL_PREFIX}")
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  file(RELATIVE_PATH WEFT_PC_TO_PREFIX "${_pc}" "${CMAKE_INSTALL_PREFIX}")
endif()
string(REGEX REPLACE "/$" "" WEFT_PC_TO_PREFIX "${WEFT_PC_TO_PREFIX}")
foreach(_dir IN ITEMS LIBDIR INCLUDEDIR)
  set(WEFT_PC_${_dir} "\${prefix}/${CMAKE_INSTALL_${_dir}}")
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${_dir}}")
    set(WEFT_PC_${_dir} "${CMAKE_INSTALL_${_dir}}")
  endif()
endforeach()
configure_file("${CMAKE_CURRENT_LIST_DIR}/weft.pc.in" weft.pc @ONLY)

install(FILES include/weft.h include/weft.hpp DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(PROGRAMS "${WEFT_OUTPUT_DIR}/${WEFT_FILE}" DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(FILES "${WEFT_OUTPUT_DIR}/${WEFT_SONAME}" "${WEFT_OUTPUT_DIR}/libweft.so" DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/weft-config.cmake" "${CMAKE_CURRENT_BINARY_DIR}/weft-config-version.cmake"
  DESTINATION "${_package}")
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/weft.pc" DESTINATION "${_pc}")
install(FILES LICENSE-APACHE LICENSE-MIT DESTINATION "${CMAKE_INSTALL_DOCDIR}")
