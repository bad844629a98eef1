# CUDA_GCTX_CUDA_INCLUDE, the folder of cuda.h: what the caller gives, or that of the nvidia-cuda-runtime wheel, a build
# requirement, as the Python that runs the build sees it.
set(CUDA_GCTX_CUDA_INCLUDE "" CACHE PATH "Folder of cuda.h (13.5 or newer, below 14); empty: the wheel's")
if(NOT CUDA_GCTX_CUDA_INCLUDE)
  find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c
            "import importlib.metadata as m; print(next(f.locate().parent for f in m.files('nvidia-cuda-runtime') if f.name == 'cuda.h'), end='')"
    OUTPUT_VARIABLE wheel_include
    RESULT_VARIABLE failed
    ERROR_VARIABLE reason)
  if(failed)
    message(FATAL_ERROR "cuda.h was not found: install 'nvidia-cuda-runtime>=13.5,<14' for ${Python_EXECUTABLE}, "
                        "or give -DCUDA_GCTX_CUDA_INCLUDE=DIR.\n${reason}")
  endif()
  # A normal variable, not the cache: an isolated build has another folder each time.
  set(CUDA_GCTX_CUDA_INCLUDE "${wheel_include}")
endif()
