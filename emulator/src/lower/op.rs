//! Decoded instructions. Operands are indices into a warp's register banks; constants and special registers have slots of their own, so
//! that no instruction asks what kind of operand it has.

use crate::ptx::Type;

/// Index into a register bank of a warp; which bank, the instruction knows.
pub type Slot = u32;

/// The bank that holds a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bank {
    /// Up to 32 bits wide.
    Word,
    /// 64 bits wide.
    Double,
    /// Predicates.
    Pred,
}

/// A register: bank and index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reg {
    pub bank: Bank,
    pub slot: Slot,
}

/// State space of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Generic,
    Global,
    Shared,
    Local,
    Param,
}

/// `[register + offset]`.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    pub base: Reg,
    pub offset: i64,
}

/// Integer operations of the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntOp {
    Add,
    Sub,
    MulLo,
    And,
    Or,
    Xor,
    Shl,
    ShrU,
    ShrS,
    MinS,
    MinU,
    MaxS,
    MaxU,
}

/// f32 operations of the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatOp {
    Add,
    Sub,
    Mul,
    Min,
    Max,
}

/// f32 functions of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnaryOp {
    Ex2,
    Lg2,
    Rcp,
    Sqrt,
    Rsqrt,
    Sin,
    Cos,
    Tanh,
    Neg,
    Abs,
}

/// Comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    /// Unordered forms of floating point: true if an operand is NaN.
    Equ,
    Neu,
    Ltu,
    Leu,
    Gtu,
    Geu,
    /// Both operands are numbers; at least one is NaN.
    Num,
    Nan,
}

/// How a comparison reads its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareAs {
    Signed,
    Unsigned,
    Float,
}

/// Boolean combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logic {
    And,
    Or,
    Xor,
}

/// Functions that are evaluated lane by lane, for every type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScalarFn {
    Add,
    Sub,
    MulLo,
    MulHi,
    MulWide,
    MadLo,
    MadHi,
    MadWide,
    Sad,
    Div,
    Rem,
    Abs,
    Neg,
    Min,
    Max,
    And,
    Or,
    Xor,
    Not,
    Cnot,
    Shl,
    Shr,
    FunnelLeft { clamp: bool },
    FunnelRight { clamp: bool },
    Permute,
    Popc,
    Clz,
    Brev,
    Bfind { shift_amount: bool },
    Bfe,
    Bfi,
    Lop3 { table: u8 },
    Fma,
    Unary(UnaryOp),
    Copysign,
    SelectBySign,
    Convert { from: Type, rounding: Rounding, saturate: bool, relu: bool },
    ConvertPair { rounding: Rounding, relu: bool },
}

/// Rounding of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// To nearest even; the default of floating-point results.
    Nearest,
    /// Toward zero, toward minus and plus infinity.
    Zero,
    Down,
    Up,
    /// To an integral value, in the four directions.
    IntNearest,
    IntZero,
    IntDown,
    IntUp,
    /// To nearest, ties away from zero (tf32).
    Away,
}

/// A function evaluated lane by lane.
#[derive(Clone, Debug)]
pub struct Scalar {
    pub function: ScalarFn,
    /// Type in which the function works; of a conversion, the result's.
    pub ty: Type,
    pub ftz: bool,
    pub saturate: bool,
    pub dest: Reg,
    pub sources: [Option<Reg>; 4],
}

/// `setp`, `set` in every form.
#[derive(Clone, Debug)]
pub struct SetPredicate {
    pub compare: Compare,
    pub ty: Type,
    pub ftz: bool,
    pub dest: Option<Slot>,
    pub complement: Option<Slot>,
    pub a: Reg,
    pub b: Reg,
    pub combine: Option<(Logic, Slot, bool)>,
    /// `set`: the destination is a register of this type instead.
    pub set: Option<(Type, Reg)>,
}

/// Ordering of a memory operation or fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Weak,
    Relaxed,
    Acquire,
    Release,
    AcqRel,
}

/// How far an ordering reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    Cta,
    Cluster,
    Gpu,
    Sys,
}

/// `ld` and `st`.
#[derive(Clone, Debug)]
pub struct Access {
    pub space: Space,
    pub ty: Type,
    pub address: Address,
    /// Destinations of a load, sources of a store; `None` for `_`.
    pub regs: Vec<Option<Reg>>,
    pub order: Order,
    pub scope: Scope,
}

/// Atomic functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicFn {
    Add,
    Min,
    Max,
    Inc,
    Dec,
    And,
    Or,
    Xor,
    Exchange,
    CompareSwap,
}

/// `atom` and `red`.
#[derive(Clone, Debug)]
pub struct Atomic {
    pub function: AtomicFn,
    pub space: Space,
    pub ty: Type,
    pub address: Address,
    pub dest: Option<Reg>,
    pub b: Reg,
    pub c: Option<Reg>,
    pub order: Order,
    pub scope: Scope,
}

/// Lane exchange of `shfl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShuffleMode {
    Up,
    Down,
    Butterfly,
    Index,
}

/// `vote` and `activemask`-like reductions over a warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VoteMode {
    All,
    Any,
    Uniform,
    Ballot,
}

/// What a named barrier instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierMode {
    Sync,
    Arrive,
    RedPopc,
    RedAnd,
    RedOr,
}

/// `bar` and `barrier`.
#[derive(Clone, Debug)]
pub struct Barrier {
    pub mode: BarrierMode,
    pub aligned: bool,
    pub id: Slot,
    pub count: Option<Slot>,
    pub dest: Option<Reg>,
    pub source: Option<(Slot, bool)>,
}

/// Fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    Memory(Scope),
    ProxyAsync,
    ProxyOther,
    MbarrierInit,
}

/// `mbarrier.arrive` and its variants.
#[derive(Clone, Debug)]
pub struct Arrive {
    pub address: Address,
    pub space: Space,
    pub count: Option<Slot>,
    pub expect_tx: Option<Slot>,
    pub drop: bool,
    pub release: bool,
    pub state: Option<Slot>,
}

/// `mbarrier.test_wait` and `try_wait`.
#[derive(Clone, Debug)]
pub struct MbarrierWait {
    pub address: Address,
    pub space: Space,
    pub dest: Slot,
    /// A parity in the 32-bit bank or a state in the 64-bit bank.
    pub phase: Reg,
    pub may_suspend: bool,
    pub acquire: bool,
}

/// Direction of a bulk copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// global -> shared, completion on an mbarrier.
    Load,
    /// shared -> global, completion by bulk group.
    Store,
    /// shared -> global with a reduction.
    Reduce(AtomicFn),
}

/// `cp.async.bulk.tensor` and `cp.reduce.async.bulk.tensor`.
#[derive(Clone, Debug)]
pub struct BulkTensor {
    pub direction: Direction,
    pub shared: Address,
    pub map: Address,
    pub coords: Vec<Slot>,
    pub mbarrier: Option<Address>,
}

/// `cp.async.bulk`.
#[derive(Clone, Debug)]
pub struct BulkCopy {
    pub direction: Direction,
    pub ty: Type,
    pub shared: Address,
    pub global: Address,
    pub bytes: Slot,
    pub mbarrier: Option<Address>,
}

/// Where the A operand of a wgmma lies.
#[derive(Clone, Debug)]
pub enum MatrixA {
    Shared { descriptor: Slot, transposed: bool },
    Registers([Slot; 4]),
}

/// Input type of a wgmma.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixType {
    F16,
    BF16,
    TF32,
}

/// `wgmma.mma_async`.
#[derive(Clone, Debug)]
pub struct Wgmma {
    pub n: u32,
    pub input: MatrixType,
    /// Accumulators: f32, one word each (`.f32`), in the manual's order.
    pub accumulators: Vec<Slot>,
    pub a: MatrixA,
    pub b_descriptor: Slot,
    pub b_transposed: bool,
    pub scale_d: Slot,
    pub scale_d_negated: bool,
    pub negate_a: bool,
    pub negate_b: bool,
}

/// `ldmatrix` and `stmatrix`, `.m8n8.b16`.
#[derive(Clone, Debug)]
pub struct MatrixMove {
    pub load: bool,
    pub transposed: bool,
    pub space: Space,
    pub address: Address,
    pub regs: Vec<Slot>,
}

/// Reductions of `redux.sync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduxFn {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
}

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
