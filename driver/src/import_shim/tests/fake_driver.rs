//! A driver for tests, compiled by them into a shared library: every function of the import list accepts exactly the arguments of
//! `pattern.rs`, and returns a code that CUDA 11.4 does not know if it has no arguments.

use std::ffi::{CStr, c_char, c_void};

#[macro_use]
#[path = "../signatures.rs"]
mod signatures;
mod pattern;

use pattern::Pattern;

type Ptr = *mut c_void;

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct Bytes64([c_char; 64]);

const SUCCESS: u32 = 0;
const INVALID_VALUE: u32 = 1;
const INVALID_CLUSTER_SIZE: u32 = 912;

macro_rules! check_arguments {
    ($(fn $name:ident($($arg:ident: $type:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        extern "C" fn $name($($arg: $type),*) -> u32 {
            let arguments: &[bool] = &[$($arg == <$type>::of(stringify!($name), stringify!($arg).as_bytes()[0])),*];
            match arguments {
                [] => INVALID_CLUSTER_SIZE,
                _ if arguments.iter().all(|&right| right) => SUCCESS,
                _ => INVALID_VALUE,
            }
        }
    )*};
}

for_each_import!(check_arguments);

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(error: u32, text: *mut *const c_char) -> u32 {
    const TEXT: &CStr = c"words of the fake driver";
    if error == INVALID_VALUE {
        // SAFETY: the caller passes a writable pointer.
        unsafe { *text = TEXT.as_ptr() };
        return SUCCESS;
    }
    INVALID_VALUE
}
