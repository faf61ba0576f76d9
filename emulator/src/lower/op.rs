//! Decoded instructions.

pub use super::parts::*;

/// A decoded instruction.
#[derive(Clone, Debug)]
pub enum Op {
    Nop,
    /// A jump; lanes that part here meet again at `reconverge` (`u32::MAX`: nowhere before they exit).
    Branch {
        target: u32,
        reconverge: u32,
    },
    Exit,
    Trap,
    Mov32 {
        d: Slot,
        a: Slot,
    },
    Mov64 {
        d: Slot,
        a: Slot,
    },
    MovPred {
        d: Slot,
        a: Slot,
    },
    /// `mov.b64 d, {lo, hi}`
    Pack64 {
        d: Slot,
        lo: Slot,
        hi: Slot,
    },
    Unpack64 {
        lo: Option<Slot>,
        hi: Option<Slot>,
        a: Slot,
    },
    /// `mov.b32 d, {lo, hi}` of halves.
    Pack32 {
        d: Slot,
        lo: Slot,
        hi: Slot,
    },
    Unpack32 {
        lo: Option<Slot>,
        hi: Option<Slot>,
        a: Slot,
    },
    Int32 {
        f: IntOp,
        d: Slot,
        a: Slot,
        b: Slot,
    },
    Int64 {
        f: IntOp,
        d: Slot,
        a: Slot,
        b: Slot,
    },
    Mad32 {
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
    },
    MulWide32 {
        signed: bool,
        d: Slot,
        a: Slot,
        b: Slot,
    },
    F32 {
        f: FloatOp,
        ftz: bool,
        d: Slot,
        a: Slot,
        b: Slot,
    },
    Fma32 {
        ftz: bool,
        d: Slot,
        a: Slot,
        b: Slot,
        c: Slot,
    },
    Unary32 {
        f: UnaryOp,
        ftz: bool,
        d: Slot,
        a: Slot,
    },
    Set32 {
        compare: Compare,
        class: CompareAs,
        ftz: bool,
        d: Slot,
        a: Slot,
        b: Slot,
    },
    Select32 {
        d: Slot,
        a: Slot,
        b: Slot,
        p: Slot,
        negated: bool,
    },
    Select64 {
        d: Slot,
        a: Slot,
        b: Slot,
        p: Slot,
        negated: bool,
    },
    /// `cvt.rn.{f16x2,bf16x2}.f32 d, hi, lo`
    PackHalf {
        bf16: bool,
        d: Slot,
        hi: Slot,
        lo: Slot,
    },
    LogicPred {
        f: Logic,
        d: Slot,
        a: Slot,
        b: Slot,
        negate_a: bool,
        negate_b: bool,
    },
    NotPred {
        d: Slot,
        a: Slot,
    },
    Scalar(Box<Scalar>),
    /// `add.cc`, `addc`, `sub.cc`, `subc` and the like: 32- or 64-bit with the carry flag.
    Carry {
        subtract: bool,
        carry_in: bool,
        carry_out: bool,
        d: Reg,
        a: Reg,
        b: Reg,
    },
    SetPred(Box<SetPredicate>),
    Clock {
        d: Reg,
        nanoseconds: bool,
    },
    /// Generic address of an address in `space`, or back.
    Cvta {
        d: Reg,
        a: Reg,
        space: Space,
        to_space: bool,
    },
    IsSpace {
        d: Slot,
        a: Slot,
        space: Space,
    },
    Load(Box<Access>),
    Store(Box<Access>),
    Atomic(Box<Atomic>),
    Fence(Fence),
    Barrier(Box<Barrier>),
    WarpSync {
        mask: Slot,
    },
    Shuffle {
        mode: ShuffleMode,
        d: Slot,
        p: Option<Slot>,
        a: Slot,
        b: Slot,
        c: Slot,
        mask: Slot,
    },
    Vote {
        mode: VoteMode,
        d: Reg,
        a: Slot,
        negated: bool,
        mask: Slot,
    },
    Match {
        all: bool,
        d: Slot,
        p: Option<Slot>,
        a: Reg,
        mask: Slot,
    },
    Redux {
        f: ReduxFn,
        signed: bool,
        d: Slot,
        a: Slot,
        mask: Slot,
    },
    ActiveMask {
        d: Slot,
    },
    Elect {
        d: Option<Slot>,
        p: Slot,
        mask: Slot,
    },
    MbarrierInit {
        address: Address,
        space: Space,
        count: Slot,
    },
    MbarrierInval {
        address: Address,
        space: Space,
    },
    MbarrierExpectTx {
        address: Address,
        space: Space,
        bytes: Slot,
    },
    MbarrierCompleteTx {
        address: Address,
        space: Space,
        bytes: Slot,
    },
    Arrive(Box<Arrive>),
    Wait(Box<MbarrierWait>),
    PendingCount {
        d: Slot,
        state: Slot,
    },
    BulkTensor(Box<BulkTensor>),
    BulkCopy(Box<BulkCopy>),
    BulkCommit,
    BulkWait {
        pending: u32,
        read: bool,
    },
    Wgmma(Box<Wgmma>),
    WgmmaFence,
    WgmmaCommit,
    WgmmaWait {
        pending: u32,
    },
    MatrixMove(Box<MatrixMove>),
    SetMaxRegisters {
        increase: bool,
        count: u32,
    },
}
