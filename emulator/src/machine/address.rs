//! The generic address space: windows for shared, local and parameter memory above every address of the host.

/// Generic address of shared memory offset 0.
pub const SHARED_WINDOW: u64 = 0x0100_0000_0000_0000;
/// Generic address of local memory offset 0.
pub const LOCAL_WINDOW: u64 = 0x0200_0000_0000_0000;
/// Generic address of the first parameter.
pub const PARAM_WINDOW: u64 = 0x0300_0000_0000_0000;
const OFFSET_MASK: u64 = 0x00ff_ffff_ffff_ffff;

/// What a generic address names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Global(u64),
    Shared(u64),
    Local(u64),
    Param(u64),
}

/// Resolves a generic address.
pub fn resolve(generic: u64) -> Target {
    let offset = generic & OFFSET_MASK;
    match generic & !OFFSET_MASK {
        SHARED_WINDOW => Target::Shared(offset),
        LOCAL_WINDOW => Target::Local(offset),
        PARAM_WINDOW => Target::Param(offset),
        _ => Target::Global(generic),
    }
}
