# Compiler settings of the software driver, and functions for its targets and tests. Included once, after project().

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()

if(NOT EXISTS "${SOFTWARE_DRIVER_CUDA_INCLUDE}/cuda.h")
  message(FATAL_ERROR "No cuda.h in '${SOFTWARE_DRIVER_CUDA_INCLUDE}': give -DSOFTWARE_DRIVER_CUDA_INCLUDE=DIR")
endif()
# 13.5 brought the newest structs and enums that are used here; 14 may change them.
file(STRINGS "${SOFTWARE_DRIVER_CUDA_INCLUDE}/cuda.h" cuda_version REGEX "^#define CUDA_VERSION [0-9]+")
string(REGEX MATCH "[0-9]+" cuda_version "${cuda_version}")
if(cuda_version LESS 13050 OR NOT cuda_version LESS 14000)
  message(FATAL_ERROR "cuda.h in '${SOFTWARE_DRIVER_CUDA_INCLUDE}' is of version ${cuda_version}: 13050 to 13999 is needed")
endif()

set(SOFTWARE_DRIVER_SANITIZE "" CACHE STRING "Sanitizers to build with: 'address,undefined' or 'thread'; empty: none")
# Not for everybody: another compiler may know warnings that this code has never met.
option(SOFTWARE_DRIVER_WERROR "Treat warnings as errors, as the builds of make do" OFF)

set(CMAKE_CXX_EXTENSIONS OFF)
# No source is a module. A compiler that can look for them does so for C++20, and then no sources are compiled together.
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

find_package(Threads REQUIRED)
enable_testing()

# Settings of every C++ target.
add_library(software_driver_headers INTERFACE)
target_include_directories(software_driver_headers SYSTEM INTERFACE "${SOFTWARE_DRIVER_CUDA_INCLUDE}")
target_compile_features(software_driver_headers INTERFACE cxx_std_20)
# CMake's own choice is -O3, which builds slower and larger and gains nothing where the driver is waited for. A target
# has another level as its property: options of its own stand before what it inherits, and the last level counts.
define_property(TARGET PROPERTY SOFTWARE_DRIVER_OPTIMISATION BRIEF_DOCS "Another level than -O2, such as -Os"
                                                             FULL_DOCS "In a release")
set(level "$<TARGET_PROPERTY:SOFTWARE_DRIVER_OPTIMISATION>")
target_compile_options(software_driver_headers INTERFACE "$<$<CONFIG:Release>:$<IF:$<BOOL:${level}>,${level},-O2>>")
# GCC collects its garbage from 128 MB on, which takes a sixth of the time of a unit. One takes less than 1 GB without.
target_compile_options(software_driver_headers
                       INTERFACE "$<$<CXX_COMPILER_ID:GNU>:SHELL:--param ggc-min-heapsize=1000000>")
if(SOFTWARE_DRIVER_SANITIZE)
  target_compile_options(software_driver_headers INTERFACE -fsanitize=${SOFTWARE_DRIVER_SANITIZE}
                                                           -fno-omit-frame-pointer -g)
  target_link_options(software_driver_headers INTERFACE -fsanitize=${SOFTWARE_DRIVER_SANITIZE})
  # C callers may pass any number where the driver's header has an enum; such a number is checked, not undefined.
  target_compile_options(software_driver_headers INTERFACE -fno-sanitize=enum)
endif()

add_library(software_driver_strict INTERFACE)
target_link_libraries(software_driver_strict INTERFACE software_driver_headers)
target_compile_options(software_driver_strict INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wshadow
                                                        $<$<BOOL:${SOFTWARE_DRIVER_WERROR}>:-Werror>)

add_custom_target(cpp_tests ALL)

# compile_together(TARGET UNITS): its sources are compiled in so many units, each of which reads the headers once: they
# take longer to compile than what a source says. Names without linkage have to differ within a target.
function(compile_together target units)
  get_target_property(sources ${target} SOURCES)
  list(LENGTH sources count)
  math(EXPR batch "(${count} + ${units} - 1) / ${units}")
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${batch})
endfunction()

# add_cpp_test(name [ARGUMENT...]): cpp/tests/name.cpp becomes a program that ctest runs with these arguments. It opens
# the software driver of this build.
function(add_cpp_test name)
  add_executable(${name} EXCLUDE_FROM_ALL cpp/tests/${name}.cpp)
  target_link_libraries(${name} PRIVATE software_driver_strict Threads::Threads ${CMAKE_DL_LIBS})
  # -O0 compiles fastest, and a test runs no longer than it compiles.
  set_target_properties(${name} PROPERTIES SOFTWARE_DRIVER_OPTIMISATION -O0)
  target_compile_definitions(${name} PRIVATE CUDA_SOFTWARE_DRIVER="$<TARGET_FILE:cuda_software_driver>")
  add_test(NAME ${name} COMMAND ${name} ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT 120)
  add_dependencies(${name} cuda_software_driver)
  add_dependencies(cpp_tests ${name})
endfunction()
