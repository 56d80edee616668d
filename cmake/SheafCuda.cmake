# SPDX-License-Identifier: MIT
# CUDA tensors: kernels, and what calls them, are part of the library where the torch found has CUDA. SHEAF_CUDA=OFF
# leaves them out, ON insists on them.
set(SHEAF_CUDA AUTO CACHE STRING "Carry CUDA tensors: AUTO (where torch and the machine have CUDA), ON or OFF")
set_property(CACHE SHEAF_CUDA PROPERTY STRINGS AUTO ON OFF)

set(SHEAF_CUDA_KERNELS src/cuda/place.cu src/cuda/sum.cu)
set(SHEAF_CUDA_SOURCES src/cuda/work.cpp)

# Sets `result` to how the toolkit found is another one than torch's; empty: it is not. Two CUDA runtimes in one process
# know nothing of each other's streams.
function(_sheaf_cuda_differs result)
  execute_process(COMMAND "${CMAKE_CUDA_COMPILER}" --version OUTPUT_VARIABLE compiler ERROR_QUIET)
  file(STRINGS "${SHEAF_TORCH_ROOT}/lib/libc10_cuda.so" needed REGEX "libcudart[-0-9a-f]*\\.so\\.[0-9]+")
  string(REGEX MATCH "release ([0-9]+)" _ "${compiler}")
  set(found "${CMAKE_MATCH_1}")
  string(REGEX MATCH "libcudart[-0-9a-f]*\\.so\\.([0-9]+)" _ "${needed}")
  set(wanted "${CMAKE_MATCH_1}")
  set(differs "")
  if(found AND wanted AND NOT found EQUAL wanted)
    string(CONCAT differs "the torch at ${SHEAF_TORCH_ROOT} was built for CUDA ${wanted}, but ${CMAKE_CUDA_COMPILER} is"
                  " of CUDA ${found}: name another with -DCMAKE_CUDA_COMPILER=")
  endif()
  set(${result} "${differs}" PARENT_SCOPE)
endfunction()

# Sets `result` to what is missing; empty: nothing.
function(_sheaf_cuda_lacks result)
  set(missing "")
  if(NOT EXISTS "${SHEAF_TORCH_ROOT}/lib/libc10_cuda.so")
    set(missing "the torch at ${SHEAF_TORCH_ROOT} has no CUDA")
  else()
    include(CheckLanguage)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      _sheaf_cuda_differs(missing)
    else()
      set(missing "no CUDA compiler was found: name one with -DCMAKE_CUDA_COMPILER=")
    endif()
  endif()
  set(${result} "${missing}" PARENT_SCOPE)
endfunction()

# To be called where the languages of the project may still grow. Adds to the target sheaf.
macro(sheaf_add_cuda)
  set(SHEAF_HAS_CUDA false) # as the library's record says it
  set(_sheaf_missing "SHEAF_CUDA is OFF")
  if(SHEAF_CUDA)
    _sheaf_cuda_lacks(_sheaf_missing)
  endif()
  if(_sheaf_missing AND SHEAF_CUDA AND NOT SHEAF_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "SHEAF_CUDA=${SHEAF_CUDA}, but ${_sheaf_missing}")
  elseif(_sheaf_missing)
    message(STATUS "Sheaf carries CPU tensors alone: ${_sheaf_missing}")
  else()
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90) # and whatever comes later, through the code of the last
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    message(STATUS "Sheaf carries CUDA tensors (CUDA ${CUDAToolkit_VERSION}, for ${CMAKE_CUDA_ARCHITECTURES})")
    _sheaf_build_cuda()
    set(SHEAF_HAS_CUDA true)
  endif()
endmacro()

# What makes a second communicator, for started calls, needs the header of the NCCL that torch has, and those of the
# libraries that torch's own headers name, which not every toolkit brings. A wheel's lie beside torch.
function(_sheaf_add_nccl)
  file(GLOB beside_torch LIST_DIRECTORIES true "${SHEAF_TORCH_ROOT}/../nvidia/*/include")
  find_path(
    SHEAF_NCCL_INCLUDE nccl.h
    PATHS ${beside_torch}
    NO_DEFAULT_PATH
    DOC "Folder of nccl.h; OFF for none")
  find_path(SHEAF_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  set(lacking "")
  set(folders "${SHEAF_NCCL_INCLUDE}" ${CUDAToolkit_INCLUDE_DIRS})
  if(NOT SHEAF_NCCL_INCLUDE)
    set(lacking "nccl.h was not found, name its folder with -DSHEAF_NCCL_INCLUDE=")
  endif()
  foreach(header cusparse.h cublas_v2.h cublasLt.h cusolverDn.h)
    unset(folder)
    find_path(folder ${header} HINTS ${CUDAToolkit_INCLUDE_DIRS} PATHS ${beside_torch} NO_CACHE)
    if(NOT folder AND NOT lacking)
      set(lacking "${header} was found neither in the toolkit nor beside torch")
    endif()
    list(APPEND folders "${folder}")
  endforeach()
  if(lacking)
    message(STATUS "Started calls of CUDA tensors will wait for other ranks where they are started: ${lacking}")
    return()
  endif()
  add_library(sheaf_nccl OBJECT src/c10d/nccl.cpp)
  list(REMOVE_DUPLICATES folders)
  target_include_directories(sheaf_nccl SYSTEM PRIVATE ${folders})
  target_include_directories(sheaf_nccl PRIVATE include src)
  target_link_libraries(sheaf_nccl PRIVATE sheaf::torch)
  target_compile_features(sheaf_nccl PRIVATE cxx_std_20)
  sheaf_compile_options(sheaf_nccl)
  add_library(sheaf::torch_cuda SHARED IMPORTED GLOBAL)
  set_target_properties(sheaf::torch_cuda PROPERTIES IMPORTED_LOCATION "${SHEAF_TORCH_ROOT}/lib/libtorch_cuda.so"
                                                     IMPORTED_SONAME "libtorch_cuda.so")
  target_sources(sheaf PRIVATE $<TARGET_OBJECTS:sheaf_nccl>)
  target_link_libraries(sheaf PRIVATE sheaf::torch_cuda)
endfunction()

function(_sheaf_build_cuda)
  add_library(sheaf_kernels OBJECT ${SHEAF_CUDA_KERNELS})
  target_include_directories(sheaf_kernels PRIVATE include src)
  target_compile_definitions(sheaf_kernels PRIVATE _GLIBCXX_USE_CXX11_ABI=${SHEAF_TORCH_CXX11_ABI})
  # CMake before 3.26 does not know how nvcc is asked for C++20. The core's conversions of narrow types are constexpr,
  # and serve the device as they are.
  target_compile_options(sheaf_kernels PRIVATE -std=c++20 --expt-relaxed-constexpr
                                               -Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers
                                               "$<$<BOOL:${SHEAF_WERROR}>:-Werror=all-warnings;-Xcompiler=-Werror>")
  set_target_properties(
    sheaf_kernels
    PROPERTIES CUDA_VISIBILITY_PRESET hidden
               CUDA_RUNTIME_LIBRARY Shared
               POSITION_INDEPENDENT_CODE ON)

  add_library(sheaf::c10_cuda SHARED IMPORTED GLOBAL)
  set_target_properties(sheaf::c10_cuda PROPERTIES IMPORTED_LOCATION "${SHEAF_TORCH_ROOT}/lib/libc10_cuda.so"
                                                   IMPORTED_SONAME "libc10_cuda.so")
  target_sources(sheaf PRIVATE ${SHEAF_CUDA_SOURCES} $<TARGET_OBJECTS:sheaf_kernels>)
  _sheaf_add_nccl()
  # torch's libraries find theirs when they run; here they may not be on the linker's path.
  target_link_libraries(sheaf PRIVATE sheaf::c10_cuda CUDA::cudart)
  target_link_options(sheaf PRIVATE LINKER:--allow-shlib-undefined)
  set_target_properties(sheaf PROPERTIES LINKER_LANGUAGE CXX CUDA_STANDARD 17 CUDA_RUNTIME_LIBRARY Shared)
endfunction()
