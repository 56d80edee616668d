# SPDX-License-Identifier: MIT
# Finds torch and makes the target sheaf::torch from its headers, libtorch_cpu and libc10. It does so without torch's
# own CMake package, which asks for a whole CUDA toolkit wherever torch was built with CUDA. The installed package of
# Sheaf uses this file too.

set(SHEAF_TORCH_OLDEST 2.11)
set(SHEAF_TORCH_NEWEST 2.13)

# Sets `result` to `folder` if a torch is there.
function(_sheaf_torch_at folder result)
  cmake_path(NORMAL_PATH folder)
  if(EXISTS "${folder}/lib/libtorch_cpu.so" AND EXISTS "${folder}/include/ATen/ATen.h")
    set(${result} "${folder}" PARENT_SCOPE)
  endif()
endfunction()

# Sets `result` to the torch that CMAKE_PREFIX_PATH or Torch_DIR names, by its root or by its share/cmake.
function(_sheaf_torch_of_paths result)
  string(REPLACE ":" ";" environment "$ENV{CMAKE_PREFIX_PATH}")
  set(found "")
  foreach(folder IN LISTS CMAKE_PREFIX_PATH environment Torch_DIR)
    foreach(up "." "../.." "../../..")
      if(NOT found)
        _sheaf_torch_at("${folder}/${up}" found)
      endif()
    endforeach()
  endforeach()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

# Sets `result` to the torch of the Python interpreter, and `interpreter` to that Python.
function(_sheaf_torch_of_python result interpreter)
  set(found "")
  find_package(Python 3.10 COMPONENTS Interpreter QUIET)
  if(Python_EXECUTABLE)
    execute_process(
      COMMAND "${Python_EXECUTABLE}" -c
              "import importlib.util as u; s = u.find_spec('torch'); print(*(s.submodule_search_locations if s else []))"
      OUTPUT_VARIABLE folder
      OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    _sheaf_torch_at("${folder}" found)
  endif()
  set(${result} "${found}" PARENT_SCOPE)
  set(${interpreter} "${Python_EXECUTABLE}" PARENT_SCOPE)
endfunction()

# Sets SHEAF_TORCH_VERSION (2.13.0) and SHEAF_TORCH_CXX11_ABI from the files of the torch at SHEAF_TORCH_ROOT.
function(_sheaf_read_torch)
  set(text "")
  foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(EXISTS "${SHEAF_TORCH_ROOT}/include/${header}")
      file(READ "${SHEAF_TORCH_ROOT}/include/${header}" content)
      string(APPEND text "${content}")
    endif()
  endforeach()
  set(version "")
  foreach(part MAJOR MINOR PATCH)
    string(REGEX MATCH "TORCH_VERSION_${part} ([0-9]+)" matched "${text}")
    list(APPEND version "${CMAKE_MATCH_1}")
  endforeach()
  list(JOIN version "." version)
  set(SHEAF_TORCH_VERSION "${version}" PARENT_SCOPE)

  # Only the old string ABI was ever recorded as a flag that matters; without a word it is the new one.
  set(abi 1)
  set(config "${SHEAF_TORCH_ROOT}/share/cmake/Torch/TorchConfig.cmake")
  if(EXISTS "${config}")
    file(READ "${config}" text)
    if(text MATCHES "_GLIBCXX_USE_CXX11_ABI=([01])")
      set(abi ${CMAKE_MATCH_1})
    endif()
  endif()
  set(SHEAF_TORCH_CXX11_ABI ${abi} PARENT_SCOPE)
endfunction()

function(_sheaf_torch_target)
  if(TARGET sheaf::torch)
    return()
  endif()
  foreach(name torch_cpu c10)
    add_library(sheaf::${name} SHARED IMPORTED GLOBAL)
    set_target_properties(sheaf::${name} PROPERTIES IMPORTED_LOCATION "${SHEAF_TORCH_ROOT}/lib/lib${name}.so"
                                                    IMPORTED_SONAME "lib${name}.so")
  endforeach()
  add_library(sheaf::torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(sheaf::torch INTERFACE "${SHEAF_TORCH_ROOT}/include"
                                                    "${SHEAF_TORCH_ROOT}/include/torch/csrc/api/include")
  target_compile_definitions(sheaf::torch INTERFACE _GLIBCXX_USE_CXX11_ABI=${SHEAF_TORCH_CXX11_ABI} USE_DISTRIBUTED
                                                    USE_C10D_GLOO)
  target_link_libraries(sheaf::torch INTERFACE sheaf::torch_cpu sheaf::c10)
endfunction()

# Looks at SHEAF_TORCH_ROOT, at CMAKE_PREFIX_PATH, at the Python that the caller chose, at `fallback` and at any Python,
# in this order. Sets SHEAF_TORCH_ROOT, SHEAF_TORCH_VERSION and SHEAF_TORCH_CXX11_ABI.
macro(sheaf_find_torch fallback)
  set(_sheaf_python "${Python_EXECUTABLE}")
  set(_sheaf_found "")
  if(SHEAF_TORCH_ROOT)
    _sheaf_torch_at("${SHEAF_TORCH_ROOT}" _sheaf_found)
  else()
    _sheaf_torch_of_paths(_sheaf_found)
    if(NOT _sheaf_found AND NOT _sheaf_python)
      _sheaf_torch_at("${fallback}" _sheaf_found)
    endif()
    if(NOT _sheaf_found)
      _sheaf_torch_of_python(_sheaf_found _sheaf_python)
    endif()
  endif()
  if(NOT _sheaf_found)
    message(
      FATAL_ERROR
        "Sheaf needs torch ${SHEAF_TORCH_OLDEST} to ${SHEAF_TORCH_NEWEST} and found none"
        " (SHEAF_TORCH_ROOT: '${SHEAF_TORCH_ROOT}', Python: '${_sheaf_python}'). Name a Python that has it with"
        " -DPython_EXECUTABLE=..., or the folder that holds torch's include/ and lib/ with -DSHEAF_TORCH_ROOT=....")
  endif()
  set(SHEAF_TORCH_ROOT "${_sheaf_found}")
  _sheaf_read_torch()
  if(NOT SHEAF_TORCH_VERSION MATCHES "^([0-9]+\\.[0-9]+)\\."
     OR CMAKE_MATCH_1 VERSION_LESS SHEAF_TORCH_OLDEST
     OR CMAKE_MATCH_1 VERSION_GREATER SHEAF_TORCH_NEWEST)
    message(
      FATAL_ERROR
        "Sheaf needs torch ${SHEAF_TORCH_OLDEST} to ${SHEAF_TORCH_NEWEST}, but ${SHEAF_TORCH_ROOT} holds torch"
        " ${SHEAF_TORCH_VERSION}. Name another with -DPython_EXECUTABLE=... or -DSHEAF_TORCH_ROOT=....")
  endif()
  set(SHEAF_TORCH_MINOR "${CMAKE_MATCH_1}")
  _sheaf_torch_target()
endmacro()
