# SPDX-License-Identifier: MIT
# What is installed: the library with a record of what it was built for (component `library`, all that the wheel
# takes), and headers and CMake package (component `development`).
include(CMakePackageConfigHelpers)

# The record lies beside the library in the build tree, too: Python checks it before it loads the library.
set(SHEAF_RECORD "${CMAKE_CURRENT_BINARY_DIR}/libsheaf.json")
configure_file(cmake/libsheaf.json.in "${SHEAF_RECORD}" @ONLY)
set_target_properties(sheaf PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}")

if(SKBUILD)
  # In a wheel the library lies in site-packages/sheaf/lib, torch's in site-packages/torch/lib. A wheel has no links,
  # so no version in the file's name.
  set(CMAKE_INSTALL_LIBDIR lib)
  set_target_properties(sheaf PROPERTIES INSTALL_RPATH "$ORIGIN/../../torch/lib")
else()
  set_target_properties(
    sheaf
    PROPERTIES VERSION ${PROJECT_VERSION}
               SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
               INSTALL_RPATH "${SHEAF_TORCH_ROOT}/lib")
endif()

if(NOT SHEAF_INSTALL)
  return()
endif()

install(
  TARGETS sheaf
  EXPORT sheaf
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development)
install(FILES "${SHEAF_RECORD}" DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)

set(SHEAF_PACKAGE ${CMAKE_INSTALL_LIBDIR}/cmake/sheaf)
install(DIRECTORY include/sheaf DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
install(EXPORT sheaf NAMESPACE sheaf:: FILE sheafTargets.cmake DESTINATION ${SHEAF_PACKAGE} COMPONENT development)
configure_package_config_file(cmake/sheafConfig.cmake.in sheafConfig.cmake INSTALL_DESTINATION ${SHEAF_PACKAGE})
write_basic_package_version_file(sheafConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(
  FILES "${CMAKE_CURRENT_BINARY_DIR}/sheafConfig.cmake" "${CMAKE_CURRENT_BINARY_DIR}/sheafConfigVersion.cmake"
        cmake/SheafTorch.cmake
  DESTINATION ${SHEAF_PACKAGE}
  COMPONENT development)
