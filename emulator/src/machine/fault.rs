//! What ends a launch before its time.

use std::fmt;

/// The kind of a fault; the driver maps it to an error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// An address outside every allocation or beyond shared memory.
    IllegalAddress,
    /// An address that is no multiple of the access's size.
    Misaligned,
    /// Operands that the hardware refuses as an illegal instruction.
    IllegalInstruction,
    /// `trap`, or a failed assertion.
    Trap,
    /// No thread can go on.
    Deadlock,
    /// The instruction budget is spent.
    Budget,
    /// Two accesses that nothing orders.
    Race,
    /// A value that nothing has written.
    Uninitialised,
    /// A rule of an instruction, of an mbarrier or of a barrier is broken.
    Protocol,
    /// Something that the emulator cannot do.
    Unsupported,
}

impl FaultKind {
    fn title(self) -> &'static str {
        match self {
            FaultKind::IllegalAddress => "illegal address",
            FaultKind::Misaligned => "misaligned address",
            FaultKind::IllegalInstruction => "illegal instruction",
            FaultKind::Trap => "trap",
            FaultKind::Deadlock => "deadlock",
            FaultKind::Budget => "instruction budget exceeded",
            FaultKind::Race => "race",
            FaultKind::Uninitialised => "uninitialised value",
            FaultKind::Protocol => "protocol",
            FaultKind::Unsupported => "not supported by the emulator",
        }
    }
}

/// A fault: what happened, and by which instruction of which thread.
#[derive(Clone, Debug)]
pub struct Fault {
    pub kind: FaultKind,
    pub message: String,
    /// The instruction, if it is another one than the one being executed.
    pub pc: Option<u32>,
    /// Linear index of the thread in its CTA.
    pub thread: Option<u32>,
    /// Filled in by the machine: kernel, CTA, line and text.
    pub place: String,
}

/// The result of a step of the machine.
pub type Step<T> = Result<T, Box<Fault>>;

impl Fault {
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Box<Self> {
        Box::new(Self { kind, message: message.into(), pc: None, thread: None, place: String::new() })
    }

    pub fn thread(mut self: Box<Self>, thread: u32) -> Box<Self> {
        self.thread.get_or_insert(thread);
        self
    }

    pub fn pc(mut self: Box<Self>, pc: u32) -> Box<Self> {
        self.pc.get_or_insert(pc);
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.title(), self.message)?;
        if !self.place.is_empty() {
            write!(f, "\n{}", self.place)?;
        }
        Ok(())
    }
}
