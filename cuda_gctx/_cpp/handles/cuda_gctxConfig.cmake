# find_package(cuda_gctx): the target cuda_gctx::cuda_gctx, the library of the installed Python package with its headers.
get_filename_component(_cuda_gctx_folder "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
if(NOT TARGET cuda_gctx::cuda_gctx)
  add_library(cuda_gctx::cuda_gctx SHARED IMPORTED)
  set_target_properties(
    cuda_gctx::cuda_gctx
    PROPERTIES IMPORTED_LOCATION "${_cuda_gctx_folder}/libcuda_gctx.so"
               IMPORTED_SONAME libcuda_gctx.so
               INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}")
endif()
unset(_cuda_gctx_folder)
