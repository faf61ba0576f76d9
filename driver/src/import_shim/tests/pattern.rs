//! One value for each argument of each function: what the tests pass to the shim and the fake driver expects to receive.

use super::{Bytes64, Ptr};

pub trait Pattern: Sized {
    /// The value for argument `position` of the function `name`.
    fn of(name: &str, position: u8) -> Self;
}

/// 64-bit FNV-1a of the name and the position: all bits of an argument differ from its neighbours'.
fn hash(name: &str, position: u8) -> u64 {
    name.bytes().chain([position]).fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

macro_rules! integer_patterns {
    ($($type:ty)*) => {$(
        impl Pattern for $type {
            fn of(name: &str, position: u8) -> Self {
                hash(name, position) as $type
            }
        }
    )*};
}

integer_patterns!(u8 u16 u32 i32 u64 usize);

impl Pattern for Ptr {
    fn of(name: &str, position: u8) -> Self {
        hash(name, position) as Ptr
    }
}

impl Pattern for f32 {
    fn of(name: &str, position: u8) -> Self {
        hash(name, position) as f32
    }
}

impl Pattern for Bytes64 {
    fn of(name: &str, position: u8) -> Self {
        Self(std::array::from_fn(|i| hash(name, position).rotate_left(i as u32) as _))
    }
}
