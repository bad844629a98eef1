/* Two streams on disjoint SMs, in C. */
#include <cuda_gctx.h>
#include <stdio.h>

static int failed(const char* what) {
  int cuda_result = 0;
  const char* message = gctx_last_error(&cuda_result);
  fprintf(stderr, "%s: %s (CUresult %d)\n", what, message, cuda_result);
  return 1;
}

int main(void) {
  gctx_group requests[2] = {{.sm_count = 16}, {.sm_count = GCTX_REST}};
  gctx_context* contexts[2];
  gctx_stream* streams[2];
  if (gctx_version() < GCTX_VERSION || gctx_open(NULL) != 0) {
    return failed("open");
  }
  if (gctx_partition(0, requests, NULL, 2, 0, contexts) != 0) {
    return failed("partition");
  }
  for (int i = 0; i < 2; ++i) {
    if (gctx_create_stream(contexts[i], 0, &streams[i]) != 0) {
      return failed("stream");
    }
    printf("%u SMs, %s\n", gctx_context_sm_count(contexts[i]), gctx_stream_handle(streams[i]) ? "a stream" : "none");
  }
  for (int i = 0; i < 2; ++i) {
    gctx_close_stream(streams[i]);
    if (gctx_close_context(contexts[i]) != 0) {
      return failed("close");
    }
  }
  return 0;
}
