# SPDX-License-Identifier: MIT
# How every target of this project is compiled.

if(PROJECT_IS_TOP_LEVEL)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
  endif()
  find_program(SHEAF_CCACHE ccache)
  mark_as_advanced(SHEAF_CCACHE)
  if(SHEAF_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    # A precompiled header defeats the cache.
    set(CMAKE_CXX_COMPILER_LAUNCHER "${SHEAF_CCACHE}")
    set(SHEAF_PCH OFF)
  endif()
endif()

function(sheaf_compile_options target)
  set_target_properties(
    ${target}
    PROPERTIES CXX_STANDARD 20
               CXX_STANDARD_REQUIRED ON
               CXX_EXTENSIONS OFF
               CXX_VISIBILITY_PRESET hidden
               VISIBILITY_INLINES_HIDDEN ON
               POSITION_INDEPENDENT_CODE ON)
  # GCC 12 and 13 see overlapping and endless copies in std::string, uninitialized std::optional and copies beyond the end
  # of a std::vector that are not there.
  # Members that an initializer leaves out are meant.
  set(mistaken -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow -Wno-maybe-uninitialized)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wno-missing-field-initializers
                                           "$<$<CXX_COMPILER_ID:GNU>:${mistaken}>" $<$<BOOL:${SHEAF_WERROR}>:-Werror>)
  if(SHEAF_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${SHEAF_SANITIZE} -fno-omit-frame-pointer -g1)
    target_link_options(${target} PUBLIC -fsanitize=${SHEAF_SANITIZE})
  endif()
endfunction()
