// Two streams on disjoint SMs, in Rust: rustc two_streams.rs -L FOLDER -l cuda_gctx -C link-arg=-Wl,-rpath,FOLDER, where
// FOLDER contains libcuda_gctx.so.
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::ptr;

const GCTX_REST: c_uint = c_uint::MAX;

#[repr(C)]
struct Group {
    sm_count: c_uint,
    coscheduled_sm_count: c_uint,
    backfill: c_int,
}

#[link(name = "cuda_gctx")]
extern "C" {
    fn gctx_last_error(cuda_result: *mut c_int) -> *const c_char;
    fn gctx_partition(
        device: c_int,
        requests: *const Group,
        names: *const *const c_char,
        count: usize,
        exclusive: c_int,
        contexts: *mut *mut c_void,
    ) -> c_int;
    fn gctx_context_sm_count(context: *const c_void) -> c_uint;
    fn gctx_create_stream(context: *const c_void, priority: c_int, stream: *mut *mut c_void) -> c_int;
    fn gctx_close_stream(stream: *mut c_void);
    fn gctx_close_context(context: *mut c_void) -> c_int;
}

fn check(answer: c_int) -> Result<(), String> {
    if answer == 0 {
        return Ok(());
    }
    Err(unsafe { CStr::from_ptr(gctx_last_error(ptr::null_mut())) }.to_string_lossy().into_owned())
}

struct Stream(*mut c_void);
impl Drop for Stream {
    fn drop(&mut self) {
        unsafe { gctx_close_stream(self.0) }
    }
}

struct Context(*mut c_void);
impl Context {
    fn create_stream(&self) -> Result<Stream, String> {
        let mut stream = ptr::null_mut();
        check(unsafe { gctx_create_stream(self.0, 0, &mut stream) })?;
        Ok(Stream(stream))
    }
}
impl Drop for Context {
    fn drop(&mut self) {
        unsafe { gctx_close_context(self.0) };
    }
}

fn main() -> Result<(), String> {
    let sizes = [16, GCTX_REST].map(|sm_count| Group { sm_count, coscheduled_sm_count: 0, backfill: 0 });
    let mut made = [ptr::null_mut(); 2];
    check(unsafe { gctx_partition(0, sizes.as_ptr(), ptr::null(), 2, 0, made.as_mut_ptr()) })?;
    for context in made.map(Context) {
        let _stream = context.create_stream()?;
        println!("{} SMs", unsafe { gctx_context_sm_count(context.0) });
    }
    Ok(())
}
