//! How an exported function is written: a body that returns an outcome.

/// Exports functions under their C names; each body gives an `Outcome`, and a panic becomes `CUDA_ERROR_UNKNOWN`.
macro_rules! api {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$meta])*
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, clippy::too_many_arguments)]
            pub extern "C" fn $name($($arg: $type),*) -> u32 {
                $crate::driver::api::call(stringify!($name), move || $body)
            }
        )*

        /// The functions of this module.
        pub fn exports() -> Vec<(&'static str, usize)> {
            vec![$((stringify!($name), $name as *const () as usize)),*]
        }
    };
}

use super::error::{Code, Outcome};

/// Runs the body of an exported function.
pub fn call(name: &str, body: impl FnOnce() -> Outcome) -> u32 {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code.0,
        Err(_) => {
            eprintln!("hopper emulator: internal error in {name}");
            Code::UNKNOWN.0
        }
    }
}
