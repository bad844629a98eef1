# Compiler settings of the core, and functions for its targets and tests. Included once, after project().

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()

if(NOT EXISTS "${CUDA_GCTX_CUDA_INCLUDE}/cuda.h")
  message(FATAL_ERROR "No cuda.h in '${CUDA_GCTX_CUDA_INCLUDE}': give -DCUDA_GCTX_CUDA_INCLUDE=DIR")
endif()
# 13.5 brought the newest structs and enums that are used here; 14 may change them.
file(STRINGS "${CUDA_GCTX_CUDA_INCLUDE}/cuda.h" cuda_version REGEX "^#define CUDA_VERSION [0-9]+")
string(REGEX MATCH "[0-9]+" cuda_version "${cuda_version}")
if(cuda_version LESS 13050 OR NOT cuda_version LESS 14000)
  message(FATAL_ERROR "cuda.h in '${CUDA_GCTX_CUDA_INCLUDE}' is of version ${cuda_version}: 13050 to 13999 is needed")
endif()

set(CUDA_GCTX_SANITIZE "" CACHE STRING "Sanitizers to build with: 'address,undefined' or 'thread'; empty: none")
# Not for everybody: another compiler may know warnings that this code has never met.
option(CUDA_GCTX_WERROR "Treat warnings as errors, as the builds of make do" OFF)

set(CMAKE_CXX_EXTENSIONS OFF)
# No source is a module. A compiler that can look for them does so for C++20, and then no sources are compiled together.
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

find_package(Threads REQUIRED)
enable_testing()

# What all C++ has in common, that written by Cython too; the strict warnings are for our own.
add_library(cuda_gctx_headers INTERFACE)
target_include_directories(cuda_gctx_headers SYSTEM INTERFACE "${CUDA_GCTX_CUDA_INCLUDE}")
target_compile_features(cuda_gctx_headers INTERFACE cxx_std_20)
# CMake's own choice is -O3, which builds slower and larger and gains nothing where the driver is waited for. A target
# has another level as its property: options of its own stand before what it inherits, and the last level counts.
define_property(TARGET PROPERTY CUDA_GCTX_OPTIMISATION BRIEF_DOCS "Another level than -O2, such as -Os"
                                                       FULL_DOCS "In a release")
set(level "$<TARGET_PROPERTY:CUDA_GCTX_OPTIMISATION>")
target_compile_options(cuda_gctx_headers INTERFACE "$<$<CONFIG:Release>:$<IF:$<BOOL:${level}>,${level},-O2>>")
# GCC collects its garbage from 128 MB on, which takes a sixth of the time of a unit. One takes less than 1 GB without.
target_compile_options(cuda_gctx_headers
                       INTERFACE "$<$<CXX_COMPILER_ID:GNU>:SHELL:--param ggc-min-heapsize=1000000>")
if(CUDA_GCTX_SANITIZE)
  target_compile_options(cuda_gctx_headers INTERFACE -fsanitize=${CUDA_GCTX_SANITIZE} -fno-omit-frame-pointer -g)
  target_link_options(cuda_gctx_headers INTERFACE -fsanitize=${CUDA_GCTX_SANITIZE})
  # C callers may pass any number where the driver's header has an enum; such a number is checked, not undefined.
  target_compile_options(cuda_gctx_headers INTERFACE -fno-sanitize=enum)
endif()

add_library(cuda_gctx_strict INTERFACE)
target_link_libraries(cuda_gctx_strict INTERFACE cuda_gctx_headers)
target_compile_options(cuda_gctx_strict INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wshadow
                                                   $<$<BOOL:${CUDA_GCTX_WERROR}>:-Werror>)

# Inside the package's build the tests are built on request only: cmake --build DIR --target cpp_tests
if(CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR)
  add_custom_target(cpp_tests ALL)
else()
  add_custom_target(cpp_tests)
endif()

# compile_together(TARGET UNITS): its sources are compiled in so many units, each of which reads the headers once: they
# take longer to compile than what a source says. Names without linkage have to differ within a target.
function(compile_together target units)
  get_target_property(sources ${target} SOURCES)
  list(LENGTH sources count)
  math(EXPR batch "(${count} + ${units} - 1) / ${units}")
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${batch})
endfunction()

# add_cpp_test(name): tests/name.cpp becomes a program that ctest runs, on the software driver whose library the
# environment variable CUDA_SOFTWARE_DRIVER names.
function(add_cpp_test name)
  add_executable(${name} EXCLUDE_FROM_ALL tests/${name}.cpp)
  target_include_directories(${name} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE cuda_gctx_strict Threads::Threads ${CMAKE_DL_LIBS})
  # It runs for as long as it takes to compile at most: what is fast is what it calls.
  set_target_properties(${name} PROPERTIES CUDA_GCTX_OPTIMISATION -O0)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 120)
  add_dependencies(cpp_tests ${name})
endfunction()
